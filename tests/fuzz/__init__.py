"""A fuzzer: random cases against what the guide promises; see :mod:`tests.fuzz.__main__`."""
