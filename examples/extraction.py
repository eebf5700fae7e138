"""Typed extraction: what the model writes is a date, a number, an object of a class."""

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal

from common import backend, report
from pydantic import Field

import boughs

MAILS = [
    "Hi, this is Maria Lopez. Please send the 12 chairs before 2026-03-14, the bill of 480.50 "
    "dollars is paid.",
    "Dear team, John Smith here. We need 3 lamps by 2026-05-02. You will get 75.00 dollars.",
]


@dataclass
class Bill:
    """What was paid."""

    amount: Annotated[float, Field(gt=0, lt=10_000)]
    currency: Literal["dollars", "euros"]


@boughs.function
def extract(s, mail):
    s += boughs.system("You read mails and note the order in them.")
    s += boughs.user(mail + "\n\nNote the customer, the number of pieces, the day and the bill.")
    s += boughs.assistant(
        "Customer: "
        + boughs.gen("customer", regex=r"[A-Z][a-z]{1,15} [A-Z][a-z]{1,15}", temperature=0)
        + "\nPieces: "
        + boughs.gen("pieces", type=int, temperature=0)
        + "\nDay: "
        + boughs.gen("day", type=date, temperature=0)
        + "\nBill: "
        + boughs.gen("bill", type=Bill, temperature=0)
    )


def main():
    with backend(), report("extraction") as tree:
        states = extract.run_batch([{"mail": mail} for mail in MAILS])
        tree.add(states)
        for state in states:
            print({name: state[name] for name in ("customer", "pieces", "day", "bill")})


if __name__ == "__main__":
    main()
