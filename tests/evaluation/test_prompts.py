"""Prompts as they are published, and files that are not quite right."""

from pathlib import Path

import pytest

from tomadiff.errors import SettingError
from tomadiff.evaluation.runs.prompts import COLOURS, OBJECTS, Prompt, PromptError, load_prompts
from training import objects

PARTI = (
    "Prompt\tCategory\tChallenge\tNote\n"
    "bond\tAbstract\tBasic\tBiology-inspired concepts with multiple meanings\n"
    'a frog reading a paper named "Toaday", with a "Toaday" hat\tAnimals\tPerspective\t\n'
    '"quoted" at the start\tAnimals\tImagination\tLongest word: "a lung disease"\n'
)
GEMREC = (
    "image_id,tag,model_id,prompt_id,seed,Prompt,negativePrompt\n"
    '1,abstract,10,1,8,"a fox, oil on canvas","blurry, ugly"\n'
    '2,abstract,11,1,8,"a fox, oil on canvas","blurry, ugly"\n'
    '3,scenery,10,2,8,"two lines\nof prompt",\n'
)


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def texts(path: Path, **settings: str) -> list[str]:
    return [prompt.text for prompt in load_prompts(path, **settings)]  # type: ignore[arg-type]


def test_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.txt", "\ufeffa fox\r\n\n  an owl \nn.b. not a class\na fox\n<script>alert(1)</script>")
    assert texts(path) == ["a fox", "an owl", "n.b. not a class", "<script>alert(1)</script>"]
    assert load_prompts(path, limit=2) == [Prompt("a fox"), Prompt("an owl")]
    assert texts(path, template="{}, {}!")[0] == "a fox, a fox!"


def test_partiprompts(tmp_path: Path) -> None:
    first, second, third = load_prompts(write(tmp_path, "PartiPrompts.tsv", PARTI))
    assert first == Prompt("bond", about={"category": "Abstract", "challenge": "Basic"})
    assert second.text == 'a frog reading a paper named "Toaday", with a "Toaday" hat'
    assert third.text == '"quoted" at the start'


def test_gemrec_repeats_prompts_once_per_model(tmp_path: Path) -> None:
    first, second = load_prompts(write(tmp_path, "gemrec.csv", GEMREC))
    assert first == Prompt("a fox, oil on canvas", "blurry, ugly", {"tag": "abstract"})
    assert second == Prompt("two lines\nof prompt", "", {"tag": "scenery"})


def test_json_lists(tmp_path: Path) -> None:
    held = '[{"prompt": "a fox", "tag": "animal", "negative_prompt": "blur"}, "an owl"]'
    assert load_prompts(write(tmp_path, "a.json", held)) == [
        Prompt("a fox", "blur", {"tag": "animal"}),
        Prompt("an owl"),
    ]


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("LOC_synset_mapping.txt", "n01440764 tench, Tinca tinca\nn02119789 kit fox, Vulpes macrotis\n"),
        ("map_clsloc.txt", "n01440764 1 tench\nn02119789 2 kit_fox\n"),
        ("words.txt", "n01440764\ttench, Tinca tinca\nn02119789\tkit fox, Vulpes macrotis\n"),
        ("clsidx_to_labels.txt", "{0: 'tench, Tinca tinca',\n 1: \"kit fox, Vulpes macrotis\"}\n"),
        ("class_index.json", '{"0": ["n01440764", "tench"], "1": ["n02119789", "kit_fox"]}'),
        ("labels.json", '{"0": "tench, Tinca tinca", "1": "kit fox, Vulpes macrotis"}'),
    ],
)
def test_imagenet_lists(name: str, held: str, tmp_path: Path) -> None:
    path = write(tmp_path, name, held)
    assert texts(path) == ["a photo of a tench", "a photo of a kit fox"]
    assert texts(path, template="a generating of a {}") == ["a generating of a tench", "a generating of a kit fox"]


def test_bare_classes_need_a_template(tmp_path: Path) -> None:
    path = write(tmp_path, "imagenet_classes.txt", "tench\nkit fox\n")
    assert texts(path, template="a photo of a {}") == ["a photo of a tench", "a photo of a kit fox"]
    with pytest.raises(SettingError, match="no place for the prompt"):
        load_prompts(path, template="a photo")


def test_the_embedded_list_is_what_the_embedded_models_know() -> None:
    found = [prompt.text for prompt in load_prompts("emoji")]
    assert set(OBJECTS) == set(objects.FIRST)
    assert set(COLOURS) == set(objects.COLOUR_NAMES)
    assert sorted(found) == sorted(objects.caption(name, colour) for name in OBJECTS for colour in COLOURS)
    assert found[:2] == ["a fox on a blue background", "a strawberry on a yellow background"]
    assert len({text.split(" on ")[0] for text in found[: len(OBJECTS)]}) == len(OBJECTS)


@pytest.mark.parametrize(
    ("name", "held", "message"),
    [
        ("empty.txt", "", "empty.txt: holds no prompt"),
        ("blank.txt", "\n  \n", "blank.txt: holds no prompt"),
        ("empty.csv", "", "empty.csv: holds no prompt"),
        ("heading.tsv", "Prompt\tNote\n", "heading.tsv: holds no prompt"),
        ("empty.json", "", "empty.json: holds no prompt"),
        ("no.csv", "text,tag\na fox,b\n", "no.csv, line 1: no column is named prompt; the columns are 'text', 'tag'"),
        ("long.csv", "prompt,tag\na,b\na fox, red,b\n", "long.csv, line 3: has 3 columns where the heading has 2"),
        ("short.tsv", "Note\tPrompt\nx\n", "short.tsv, line 2: has 1 columns where the heading has 2"),
        ("hole.csv", "prompt,tag\na,b\n\n ,b\n", "hole.csv, line 4: the prompt is empty"),
        ("open.csv", 'prompt,tag\n"a fox,b\n', "open.csv, line 2: is not a row of a table"),
        ("latin.txt", b"a fox\na caf\xe9\n", "latin.txt, line 2: is not UTF-8"),
        ("broken.json", '["a",\n"b"', "broken.json, line 2: is not JSON"),
        ("number.json", "3", "number.json, line 1: holds neither"),
        ("record.json", '[{"text": "a"}]', "record.json, entry 1: the prompt is missing"),
        ("numbers.json", '["a", 3]', "numbers.json, entry 2: is neither"),
        ("index.json", '{"0": []}', "index.json, entry '0': is not a class"),
        ("prompts.docx", "a fox", "prompts.docx: prompts are read from .txt, .csv, .tsv, .json"),
    ],
)
def test_a_bad_file_gives_one_clear_line(name: str, held: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(PromptError) as caught:
        load_prompts(write(tmp_path, name, held))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"nowhere.txt: there is no such file"):
        load_prompts(tmp_path / "nowhere.txt")
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(PromptError, match=r"folder.txt: cannot be read: Is a directory"):
        load_prompts(tmp_path / "folder.txt")
