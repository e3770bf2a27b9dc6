from tomadiff.web.cache import Kept


def test_the_results_looked_at_last_stay() -> None:
    kept: Kept[str, int] = Kept(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert [kept.get(name) for name in "abc"] == [1, None, 3]
    assert len(kept) == 2


def test_a_newer_result_takes_the_place_of_an_older_one() -> None:
    kept: Kept[str, int] = Kept(2)
    kept.put("a", 1)
    assert kept.put("a", 2) == 2
    assert (kept.get("a"), len(kept)) == (2, 1)
