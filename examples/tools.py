"""An agent with tools: it calls Python functions with typed arguments, and answers from the result.

Whatever the model writes in a call is a call: a name that there is, with arguments of its types.
"""

from datetime import date
from typing import Annotated, Literal

from common import backend, report
from pydantic import Field

import boughs


@boughs.tool
def weekday(day: date) -> str:
    """Tell the day of the week of a date."""
    return f"{day:%A}"


@boughs.tool
def convert(
    amount: Annotated[int, Field(ge=0, le=10_000)], currency: Literal["euros", "yen"]
) -> str:
    """Convert an amount of dollars to another currency."""
    rate = {"euros": 0.9, "yen": 150}[currency]
    return f"{amount * rate:g} {currency}"


TOOLS = [weekday, convert]
QUESTIONS = ["What day of the week is 2026-03-14?", "How many yen are 20 dollars?"]


@boughs.function
def agent(s, question):
    s += boughs.system("Answer by calling one of these tools:\n" + boughs.describe_tools(TOOLS))
    s += boughs.user(question)
    s += boughs.assistant(boughs.gen_tool_call("call", TOOLS, temperature=0, max_tokens=60))
    s += s["call"].run()
    s += boughs.assistant(
        "The answer is " + boughs.gen("answer", max_tokens=12, temperature=0, stop=[".", "\n"])
    )


def main():
    with backend(), report("tools") as tree:
        states = agent.run_batch([{"question": question} for question in QUESTIONS])
        tree.add(states)
        for question, state in zip(QUESTIONS, states, strict=True):
            call = state["call"]
            print(f"{question}\n  {call.name}({call.arguments}) -> {call.run().text}")
            print(f"  The answer is {state['answer']}.")


if __name__ == "__main__":
    main()
