"""The batch's arrays: what they are for a list of requests, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from boughs.kernels.batch import AttentionBatch


@st.composite
def request_lists(draw):
    page_size = draw(st.integers(1, 20))
    requests = []
    for kv_len in draw(st.lists(st.integers(0, 70), max_size=6)):
        q_len = draw(st.integers(0, kv_len))
        longer = draw(st.integers(0, 2))
        table = draw(
            st.lists(
                st.integers(0, 99),
                min_size=-(-kv_len // page_size) + longer,
                max_size=-(-kv_len // page_size) + longer,
            )
        )
        requests.append((table, kv_len, q_len))
    return page_size, requests


@given(request_lists())
def test_from_requests(drawn):
    page_size, requests = drawn
    batch = AttentionBatch.from_requests(
        [table for table, _, _ in requests],
        [kv_len for _, kv_len, _ in requests],
        [q_len for _, _, q_len in requests],
        page_size,
    )
    batch.check(100)
    assert batch.num_requests == len(requests)
    assert batch.num_rows == sum(q_len for _, _, q_len in requests)
    assert batch.kv_lens.tolist() == [kv_len for _, kv_len, _ in requests]
    assert batch.q_lens.tolist() == [q_len for _, _, q_len in requests]
    assert batch.kv_indptr[-1] == len(batch.kv_indices)
    for r, (table, kv_len, _) in enumerate(requests):
        pages = batch.kv_indices[batch.kv_indptr[r] : batch.kv_indptr[r + 1]].tolist()
        assert pages == table[: -(-kv_len // page_size)]
        last = batch.kv_last_page_len[r]
        assert last == 0 if kv_len == 0 else (kv_len - last) % page_size == 0 < last <= page_size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1]], [9], [1], 8), "need 2 pages"),
        (([[1]], [3], [4], 8), "4 rows"),
        (([[1]], [3], [-1], 8), "-1 rows"),
        (([[1]], [3], [1], 0), "page_size"),
        (([[1]], [3, 4], [1], 8), "shorter|longer"),
    ],
)
def test_from_requests_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        AttentionBatch.from_requests(*arguments)


def ints(*values):
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_indices": np.array([3, 4, 5])}, "int32, got int64"),
        ({"qo_indptr": np.array([0, 2, 3], dtype=np.int64)}, "int32, got int64"),
        ({"kv_indices": ints(3, 0, 4, 0, 5, 0)[::2]}, "no gaps"),
        ({"kv_indices": ints(3, 4, 10)}, "pool of 10"),
        ({"kv_indices": ints(3, -1, 5)}, "pool of 10"),
        ({"kv_indices": ints(3, 4)}, "kv_indices has 2"),
        ({"kv_last_page_len": ints(9, 1)}, "1 to 8"),
        ({"kv_last_page_len": ints(0, 1)}, "1 to 8"),
        ({"kv_last_page_len": ints(-1, 1)}, "1 to 8"),
        ({"kv_indptr": ints(0, 0, 3)}, "0 without pages"),
        ({"kv_indptr": ints(0, 2, 1)}, "never fall"),
        ({"kv_indptr": ints(1, 2, 3)}, "start at 0"),
        ({"qo_indptr": ints(0, 2)}, "2 entries for 2"),
        ({"qo_indptr": ints(0, 2, 4)}, "over less KV"),
    ],
)
def test_check_refuses(change, message):
    # Two requests: 2 rows over 12 tokens in pages 3 and 4, 1 row over 1 token in page 5.
    batch = AttentionBatch(ints(0, 2, 3), ints(0, 2, 3), ints(3, 4, 5), ints(4, 1), page_size=8)
    batch.check(10)
    with pytest.raises(ValueError, match=message):
        replace(batch, **change).check(10)
