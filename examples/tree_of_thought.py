"""Tree of thought: propose several plans, judge each by `select`, follow the best.

The branches of a fork share all that stands before it, so a wide tree costs its edges only.
"""

from common import backend, report

import boughs

WIDTH = 3
GRADES = ["bad", "fair", "good"]


@boughs.function
def think(s, task):
    s += boughs.system("You solve tasks step by step.")
    s += boughs.user(f"Task: {task}\nPropose a first step in one sentence.")
    plans = s.fork(WIDTH)
    for i, plan in enumerate(plans):
        plan += boughs.assistant(
            boughs.gen("step", max_tokens=32, temperature=0.8, seed=i, stop="\n")
        )
        plan += boughs.user("Is this step good, fair or bad?")
        plan += boughs.assistant("This step is " + boughs.select("grade", choices=GRADES))
    grades = [plan["grade"] for plan in plans]
    s["plans"] = [(plan["step"].strip(), grade) for plan, grade in zip(plans, grades, strict=True)]
    best = max(range(WIDTH), key=lambda i: GRADES.index(grades[i]))
    s["best"] = plans[best]["step"].strip()
    s += boughs.assistant(s["best"])
    s += boughs.user("Carry out this step and give the result.")
    s += boughs.assistant(boughs.gen("result", max_tokens=48, temperature=0))
    plans.join()


def main():
    with backend(), report("tree of thought") as tree:
        state = think.run(task="Plan a birthday party for ten children.")
        tree.add([state])
        for step, grade in state["plans"]:
            print(f"plan ({grade}): {step}")
        print(f"best: {state['best']}")
        print(f"result: {state['result'].strip()}")


if __name__ == "__main__":
    main()
