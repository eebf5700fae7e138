"""Typed extraction: regular expressions make every field what it must be."""

from common import backend, report

import boughs

MAILS = [
    "Hi, this is Maria Lopez. Please send the 12 chairs before 2026-03-14, the bill of 480.50 "
    "dollars is paid.",
    "Dear team, John Smith here. We need 3 lamps by 2026-05-02. You will get 75.00 dollars.",
]


@boughs.function
def extract(s, mail):
    s += boughs.system("You read mails and note the order in them.")
    s += boughs.user(mail + "\n\nNote the customer, the number of pieces, the day and the amount.")
    s += boughs.assistant(
        "Customer: "
        + boughs.gen("customer", regex=r"[A-Z][a-z]{1,15} [A-Z][a-z]{1,15}", temperature=0)
        + "\nPieces: "
        + boughs.gen("pieces", regex=r"[1-9][0-9]{0,2}", temperature=0, stop="\n")
        + "\nDay: "
        + boughs.gen("day", regex=r"20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]", temperature=0)
        + "\nAmount: "
        + boughs.gen("amount", regex=r"[0-9]{1,4}\.[0-9]{2}", temperature=0)
    )


def main():
    with backend(), report("extraction") as tree:
        states = extract.run_batch([{"mail": mail} for mail in MAILS])
        tree.add(states)
        for state in states:
            print(
                {
                    "customer": state["customer"],
                    "pieces": int(state["pieces"]),
                    "day": state["day"],
                    "amount": float(state["amount"]),
                }
            )


if __name__ == "__main__":
    main()
