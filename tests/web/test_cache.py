from tomadiff.web.cache import LruCache


def test_the_results_looked_at_last_stay() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(name) for name in "abc"] == [1, None, 3]
    assert len(cache) == 2


def test_a_newer_result_takes_the_place_of_an_older_one() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    assert cache.put("a", 2) == 2
    assert (cache.get("a"), len(cache)) == (2, 1)
