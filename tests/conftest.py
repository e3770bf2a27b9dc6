"""Settings of the whole suite. The environment is set before anything imports torch or diffusers."""

import os

# Some CPUs announce bf16 instructions that oneDNN then crashes on (SIGILL); this is the newest safe set.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ["HF_HUB_OFFLINE"] = "1"  # a test that wants a download is a broken test
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # apricot compiles anew for every object: 3 s to save milliseconds

import pytest
import torch
from hypothesis import HealthCheck, settings

import tomadiff.patch

# deadline: shared machines stall. derandomize: a red run must be red again. print_blob: and reproducible elsewhere.
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", parent=settings.get_profile("ci"), derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Tensors of tests are small: a second thread gains nothing, and on a busy machine waiting for it costs 50 times more.
torch.set_num_threads(1)

# Models of tests are far too small for merging to save time: the guard would leave them all alone. Tests of the guard
# ask for it.
tomadiff.patch.GUARD = False


# Folders around the core: tracing lines there takes a third more time and adds nothing to the core's coverage.
AROUND = ("benchmarks", "browser", "cli", "embedded", "evaluation", "kernels", "web")
AGAIN = ("test_compile", "test_memory", "test_pipelines", "test_together")  # run what others of families/ run

VARIANTS = ("TestSDXLRefiner", "TestFluxWithoutText", "TestFluxLongText")  # of classes that keep every promise

# Cases of parametrised tests that take several times as long as the others of them, which show the same.
LONG = (
    *(f"{name}::test_{promise}" for name in VARIANTS for promise in ("removal", "exception", "a_copy", "samples")),
    *(f"test_every_site_of_every_family_is_judged[{case}" for case in ("sdxl-fresh", "flux-fresh", "sd3-fresh")),
    "test_every_site_of_every_family_is_judged[sdxl-block",
    *(f"test_every_kind_of_scheduler[{kind}Scheduler" for kind in ("DDIM", "EulerDiscrete")),
    "test_a_speedup_reads_no_clock[False",
    *(f"test_every_method_on_every_family_it_claims[{family}-" for family in ("sd15", "sdxl", "sd3", "wan")),
    *(f"test_a_count_is_what_generating_takes[variant{number}-sdxl" for number in range(1, 9)),
    "test_an_image_is_128_square_and_depends_on_the_seed_alone[emoji-flux",
    "test_quantised_weights[sdxl",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which cases are slow, which need a GPU, and which lie around the core, so that they are not traced."""
    for item in items:
        if any(name in item.nodeid for name in LONG):
            item.add_marker(pytest.mark.slow)
        if item.path.parent.name in AROUND or item.path.stem in AGAIN:
            item.add_marker(pytest.mark.no_cover)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same random tensors whichever tests run, and in whichever order."""
    torch.manual_seed(0)
