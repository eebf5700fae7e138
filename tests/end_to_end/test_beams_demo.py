"""Beam search with the demo model finds what transformers' does.

transformers' answers are `tests/fixtures/smollm2_beams.json`, which `make_beams.py` makes. It
leaves out prompts at which the order of adding floats could decide.
"""

import json
from pathlib import Path

import pytest

import boughs

CASES = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "smollm2_beams.json").read_text(encoding="utf-8")
)


def test_the_demo_models_beams_equal_transformers(demo_model):
    """All at once, in one batch with chunks, and again on the tree that is left of it."""
    assert len(CASES) >= 5
    with boughs.Engine(model_path=demo_model, kv_memory="256M", max_batched_tokens=24) as engine:
        for _ in range(2):
            answers = engine.generate(
                [case["prompt"] for case in CASES],
                [
                    {
                        **case["fields"],
                        "n": case["fields"]["beam_width"],
                        "stop_token_ids": case["ends"],
                    }
                    for case in CASES
                ],
            )
            for case in CASES:
                found = [answers.pop(0) for _ in case["sequences"]]
                assert [one["output_ids"] for one in found] == case["sequences"]
                scores = [one["meta_info"]["sequence_score"] for one in found]
                assert scores == pytest.approx(case["scores"], abs=1e-3)
