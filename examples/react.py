"""An agent in the manner of ReAct (arXiv 2210.03629) with a calculator as its tool.

The loop's prompt only grows, so each round computes its own few tokens.
"""

import ast
import operator

from common import backend, report

import boughs

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
PROMPT = """\
Answer the question. Think, then act: Calculate[...] computes, Finish[...] ends with the answer.

Question: A shop sells 14 cups at 3 dollars and pays 12 dollars of rent. What is left?
Thought: First I need what the cups bring.
Action: Calculate[14 * 3]
Observation: 42
Thought: Now I take away the rent.
Action: Calculate[42 - 12]
Observation: 30
Thought: I know the answer.
Action: Finish[30]

"""
NUMBER = r"\d{1,6}"
CALCULATE = rf"Calculate\[{NUMBER} [-+*/] {NUMBER}\]"
FINISH = rf"Finish\[{NUMBER}\]"
ROUNDS = 4


def calculate(expression):
    """The value of one operation on two numbers, as text."""

    def value(node):
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        return node.value

    try:
        return f"{value(ast.parse(expression, mode='eval').body):g}"
    except ZeroDivisionError:
        return "no number can be divided by 0"
    except SyntaxError as error:  # such as 007
        return f"not a number: {error.msg}"


@boughs.function
def agent(s, question):
    s += PROMPT + f"Question: {question}\n"
    for turn in range(ROUNDS):
        s += "Thought:" + boughs.gen(f"thought{turn}", max_tokens=24, temperature=0, stop="\n")
        last = turn == ROUNDS - 1
        action = f"action{turn}"
        s += "\nAction: "
        s += boughs.gen(action, regex=FINISH if last else f"{CALCULATE}|{FINISH}", temperature=0)
        verb, _, argument = s[action].rstrip("]").partition("[")
        if verb == "Finish":
            s["answer"] = argument
            return
        s += f"\nObservation: {calculate(argument)}\n"


def main():
    with backend(), report("agent") as tree:
        state = agent.run(question="A team of 6 people eats 4 apples each. How many apples?")
        tree.add([state])
        print(state.text().removeprefix(PROMPT))
        print(f"answer: {state['answer']}")


if __name__ == "__main__":
    main()
