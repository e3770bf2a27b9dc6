"""What the small models know: 48 objects, 8 background colours, a few phrasings, and which pairs are held out."""

import random

# Caption word -> Unicode code point of the emoji.  Iconic food and animals whose silhouettes differ:
# few sharp classes beat many blurry ones.  No name is also the name of a colour.
OBJECTS: dict[str, str] = {
    "apple": "1f34e", "banana": "1f34c", "grapes": "1f347", "strawberry": "1f353", "cherries": "1f352",
    "watermelon": "1f349", "tangerine": "1f34a", "pineapple": "1f34d", "pear": "1f350", "avocado": "1f951",
    "eggplant": "1f346", "carrot": "1f955", "mushroom": "1f344", "broccoli": "1f966", "croissant": "1f950",
    "cheese": "1f9c0", "hamburger": "1f354", "pizza": "1f355", "donut": "1f369", "cookie": "1f36a",
    "cupcake": "1f9c1", "popcorn": "1f37f",
    "dog": "1f436", "cat": "1f431", "fox": "1f98a", "bear": "1f43b", "panda": "1f43c", "koala": "1f428",
    "tiger": "1f42f", "lion": "1f981", "cow": "1f42e", "pig": "1f437", "frog": "1f438", "monkey": "1f435",
    "rabbit": "1f430", "wolf": "1f43a", "unicorn": "1f984", "chicken": "1f414", "penguin": "1f427", "duck": "1f986",
    "owl": "1f989", "turtle": "1f422", "whale": "1f433", "fish": "1f41f", "octopus": "1f419",
    "butterfly": "1f98b", "bee": "1f41d", "ladybug": "1f41e",
}  # fmt: skip

# Background colours, sRGB in [0, 1].
COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.86, 0.16, 0.16),
    "orange": (0.97, 0.58, 0.14),
    "yellow": (0.98, 0.87, 0.25),
    "green": (0.25, 0.68, 0.32),
    "blue": (0.22, 0.45, 0.88),
    "purple": (0.55, 0.27, 0.74),
    "pink": (0.98, 0.62, 0.78),
    "white": (0.95, 0.95, 0.95),
}

PHRASINGS = (
    "{a} {object} on {c} {colour} background",
    "{object} on {colour}",
    "a picture of {a} {object} on {c} {colour} background",
    "an emoji of {a} {object}, {colour} background",
)

# What the denoisers learn first; the rest follow once these are crisp.
FIRST = (
    "strawberry", "watermelon", "avocado", "donut", "hamburger", "mushroom",
    "fox", "panda", "pig", "frog", "penguin", "owl",
)  # fmt: skip

NAMES = tuple(OBJECTS)
COLOUR_NAMES = tuple(COLOURS)


def article(word: str) -> str:
    return "an" if word[0] in "aeiou" and not word.startswith("uni") else "a"


def caption(object_name: str, colour: str, phrasing: int = 0) -> str:
    """'a fox on a blue background', or one of the other phrasings."""
    return PHRASINGS[phrasing].format(object=object_name, colour=colour, a=article(object_name), c=article(colour))


def held_out_pairs(share: float = 0.1) -> frozenset[tuple[str, str]]:
    """Object-colour pairs no training picture shows: about `share` of all, at most one per object."""
    chooser = random.Random(2026)
    wanted = round(share * len(NAMES) * len(COLOUR_NAMES))
    names = chooser.sample(NAMES, wanted)
    return frozenset((name, COLOUR_NAMES[i % len(COLOUR_NAMES)]) for i, name in enumerate(names))


def words() -> list[str]:
    """Every word a caption can hold: the closed vocabulary of the tokenizers."""
    grammar = {"a", "an", "on", "of", "the", "picture", "emoji", "background", ","}
    return sorted(grammar | set(NAMES) | set(COLOUR_NAMES))
