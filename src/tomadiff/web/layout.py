"""The parts of the page and where they are; ``page.py`` says what they do."""

from __future__ import annotations

from typing import Any

from tomadiff.evaluation.report.markup import Markup, tag
from tomadiff.evaluation.runs.variants import RECOMMENDED
from tomadiff.methods.registry import CATALOGUE
from tomadiff.web.maps import VIEWS
from tomadiff.web.request import FIELDS
from tomadiff.web.session import Model, Session
from tomadiff.web.tradeoff import RATIOS

LEAD = "One image, generated twice from the same noise: in full, and with steps forecast or tokens merged."
EMOJI = ("a fox on a blue background", "a panda on a pink background", "a strawberry on a white background")
SCENES = ("a fox in the snow", "a lighthouse at dusk, oil painting", "a bowl of fruit on a wooden table")


class Layout:
    """Every part, by name; made inside an open ``gr.Blocks``."""

    def __init__(self, gr: Any, session: Session) -> None:
        self.gr, self.session = gr, session
        gr.HTML(tag("header", tag("h1", "tomadiff"), tag("p", LEAD)))
        self.shown = gr.State()  # the request that the images are for
        with gr.Row(elem_id="columns"):
            with gr.Column(scale=3, min_width=300, elem_id="controls"):
                self._controls(session.first)
            with gr.Column(scale=8, min_width=320), gr.Tabs(elem_id="tabs"):
                with gr.Tab("Images"), gr.Row():
                    self._pair()
                    self._done()
                with gr.Tab("Trade-off"):
                    self._curve()
                with gr.Tab("Python"):
                    self._python()

        for slider in (self.ratio, self.forecast):  # request.read says what is wrong, below the field
            slider.preprocess = _as_it_is

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a request, by the names that :func:`tomadiff.web.request.read` knows."""
        names = ("model", "prompt", "method", "ratio", "forecast", "width", "height", "steps", "seed")
        return {name: getattr(self, name) for name in names}

    @property
    def settings(self) -> list[Any]:
        """What is shown only for methods that leave it to the visitor."""
        return [self.merging, self.forecasting]

    # ------------------------------------------------------------------------------------------ left
    def _controls(self, first: Model) -> None:
        gr = self.gr
        # Lines for what is wrong, each rendered below its field.
        self.problems = {name: gr.HTML(visible=False, render=False) for name in FIELDS}
        examples = EMOJI if first.embedded else SCENES
        self.prompt = gr.Textbox(
            examples[0], label="Prompt", placeholder="What to generate", info=about(first), elem_id="prompt"
        )
        self.problems["prompt"].render()
        gr.Examples([[text] for text in examples], self.prompt, elem_id="examples")
        methods = [(entry.title, name) for name, entry in CATALOGUE.items() if entry.group in ("toma", "baseline")]
        self.method = gr.Dropdown(
            [("Recommended: forecast steps", RECOMMENDED), *methods],
            value=RECOMMENDED,
            label="Method",
            elem_id="method",
        )
        self.problems["method"].render()
        with gr.Column(visible=False) as self.merging:
            self.ratio = gr.Slider(
                0, 0.95, 0.5, step=0.05, label="Ratio", info="Share of tokens merged away: 0.5 is half", elem_id="ratio"
            )
            self.problems["ratio"].render()
        offered = list(self.session.models)
        self.model = gr.Dropdown(offered, value=first.name, label="Model", elem_id="model")
        with gr.Row(elem_id="buttons"):
            self.generate = gr.Button("Generate", variant="primary", scale=3, min_width=120, elem_id="generate")
            self.stop = gr.Button("Stop", scale=1, min_width=70, elem_id="stop")
        self.notice = gr.HTML(visible=False, elem_id="notice")
        with gr.Accordion("Forecast, size, steps and seed", open=False, elem_id="more"):
            self._more(first)

    def _more(self, first: Model) -> None:
        gr, canvas = self.gr, first.canvas
        with gr.Column(visible=False) as self.forecasting:
            self.forecast = gr.Slider(
                0, 0.3, 0, step=0.01, label="Forecast", elem_id="forecast",
                info="Tolerance of steps that are forecast, not computed (not part of the paper); 0 computes all",
            )  # fmt: skip
            self.problems["forecast"].render()
        with gr.Row():
            self.width = gr.Number(canvas.width, label="Width", min_width=90, elem_id="width")
            self.height = gr.Number(canvas.height, label="Height", min_width=90, elem_id="height")
        self.problems["size"].render()
        with gr.Row():
            self.steps = gr.Number(first.steps, label="Steps", min_width=90, elem_id="steps")
            self.seed = gr.Number(0, label="Seed", min_width=90, elem_id="seed")
        self.problems["steps"].render()
        self.problems["seed"].render()

    # ------------------------------------------------------------------------------------------ right
    def _pair(self) -> None:
        gr = self.gr
        with gr.Column(min_width=300):
            self.pair = gr.ImageSlider(
                label="In full | with tomadiff", format="png", interactive=False, max_height=640,
                buttons=["fullscreen"], elem_id="pair",
            )  # fmt: skip
            self.cards = gr.HTML(elem_id="cards")

    def _done(self) -> None:
        """Which steps were computed, and what merged."""
        with self.gr.Column(min_width=300):
            self.computed = self.gr.HTML(elem_id="computed")
            with self.gr.Column(visible=False) as self.merged:  # until something merged
                self._map()

    def _map(self) -> None:
        gr, views = self.gr, [(name.capitalize(), name) for name in VIEWS]
        self.map = gr.Image(label="What merged", format="png", interactive=False, buttons=["fullscreen"], elem_id="map")
        self.note = gr.HTML(elem_id="note")
        self.view = gr.Radio(views, value=VIEWS[0], label="Show", elem_id="view")
        with gr.Row():
            self.where = gr.Dropdown([], label="Where", min_width=200, interactive=True, elem_id="where")
            self.step = gr.Slider(1, 2, 1, step=1, label="Step", min_width=150, elem_id="step")

    def _curve(self) -> None:
        gr, shares = self.gr, ", ".join(f"{ratio:.0%}" for ratio in RATIOS)
        words = (
            f"The image once more with {shares} of its tokens merged away; with what is recommended, other forecasts."
        )
        gr.HTML(tag("p", words, class_="soft"))
        self.generate_curve = gr.Button("Generate the curve", variant="primary", elem_id="generate-curve")
        self.curve_notice = gr.HTML(visible=False, elem_id="curve-notice")
        self.curve = gr.HTML(min_height=120, elem_id="curve")

    def _python(self) -> None:
        gr = self.gr
        self.code = gr.Code(
            label="The same in Python", language="python", interactive=False, wrap_lines=True, elem_id="code"
        )
        self.summary = gr.Code(label="patch.summary()", language=None, interactive=False, elem_id="summary")

    def line(self, text: str | None) -> Any:
        """An update of a line that says what is wrong; without text it goes away."""
        return self.gr.update(value=alert(text) if text else "", visible=bool(text))


def _as_it_is(value: Any) -> Any:
    """Instead of Gradio's own check, which shows an error of the server."""
    return value


def about(model: Model) -> str:
    """What to know about prompts of a model."""
    read = f"The first {model.words} tokens are read." if model.words else ""
    return f"An object on a background colour. {read}" if model.embedded else read


def alert(text: str) -> Markup:
    """Text that a screen reader reads out as it appears."""
    return tag("p", text, role="alert", class_="wrong")
