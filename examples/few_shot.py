"""Few-shot question answering over a batch: eight questions share one prefix of examples.

The batch runs twice. The first run computes the prefix once; the second finds it, and every
question, in the tree.
"""

from common import backend, report

import boughs

EXAMPLES = """\
Q: A farmer has 3 baskets with 12 apples each and gives away 6 apples. How many are left?
A: 3 baskets of 12 are 36 apples. 36 - 6 = 30. The answer is 30.

Q: A train runs 80 kilometres an hour for 3 hours. How far does it come?
A: 80 kilometres an hour for 3 hours are 80 * 3 = 240 kilometres. The answer is 240.

Q: Tea costs 4 dollars and a cake costs 7 dollars. What do two teas and one cake cost?
A: Two teas cost 2 * 4 = 8 dollars. 8 + 7 = 15. The answer is 15.

Q: A book has 200 pages. Ann reads 30 pages a day for 5 days. How many pages are left?
A: In 5 days Ann reads 30 * 5 = 150 pages. 200 - 150 = 50. The answer is 50.

"""

QUESTIONS = [
    "A box holds 6 eggs. How many eggs are in 7 boxes?",
    "Tom has 15 marbles and loses 4. How many does he have?",
    "A pen costs 2 dollars. What do 9 pens cost?",
    "A tank holds 100 litres. 35 litres are used. How many are left?",
    "Sara walks 5 kilometres a day. How far does she walk in a week?",
    "Four friends share 20 sweets. How many does each get?",
    "A film starts at 6 and runs 2 hours. At what hour does it end?",
    "A shelf has 8 books and gets 5 more. How many are there?",
]


@boughs.function
def answer(s, question):
    s += EXAMPLES
    s += f"Q: {question}\nA:"
    s += boughs.gen("answer", max_tokens=32, temperature=0, stop="\n")


def main():
    with backend():
        for title in ("first run", "second run"):
            with report(title) as tree:
                states = answer.run_batch([{"question": question} for question in QUESTIONS])
                tree.add(states)
                if title == "first run":
                    for question, state in zip(QUESTIONS, states, strict=True):
                        print(f"Q: {question}\nA:{state['answer']}")


if __name__ == "__main__":
    main()
