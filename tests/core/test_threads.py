"""The number of BLAS threads: fits in several threads leave it as it was."""

from threading import Barrier, Thread

from threadpoolctl import threadpool_info

from coreg_core.threads import one_thread, pin_threads


def numbers():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_blocks_that_overlap_leave_the_number_as_it_was():
    before = numbers()
    pin_threads(2)
    first_inside = Barrier(2)
    second_inside = Barrier(2)
    first_left = Barrier(2)
    inside = []

    def first():
        with one_thread():
            first_inside.wait()
            second_inside.wait()
        first_left.wait()

    def second():
        first_inside.wait()
        with one_thread():
            second_inside.wait()
            first_left.wait()
            inside.append(numbers())

    threads = [Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = numbers()
    pin_threads(max(before))
    assert inside == [{1}], "one thread until the last block ends"
    assert after == {2}


def test_every_thread_can_set_the_number():
    before = numbers()
    seen = []

    def pin(threads):
        pin_threads(threads)
        seen.append(numbers())

    pin_threads(1)
    for threads in (2, 1):
        thread = Thread(target=pin, args=(threads,))
        thread.start()
        thread.join()
    pin_threads(max(before))
    assert seen == [{2}, {1}]
