"""Work on one thread."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sparsefam._numerics.threads import one_thread


def test_one_thread_while_any_function_needs_it() -> None:
    barrier, seen, before = threading.Barrier(2, timeout=10), [], torch.get_num_threads()
    torch.set_num_threads(2)

    @one_thread()
    def work(x: int) -> None:
        barrier.wait()  # both are inside
        with one_thread():
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())
        raise ValueError

    worker = threading.Thread(target=pytest.raises, args=(ValueError, work, 0))
    worker.start()
    with pytest.raises(ValueError):
        work(1)
    worker.join()
    assert seen == [1] * 4 and torch.get_num_threads() == 2
    with ThreadPoolExecutor(1) as pool:  # a new thread has what was set last
        assert pool.submit(torch.get_num_threads).result() == 2
    torch.set_num_threads(before)
