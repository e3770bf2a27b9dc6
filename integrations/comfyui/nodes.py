"""The nodes."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import ComfyExtension, io, ui

from tomadiff.engine.components import require_match
from tomadiff.methods import Method, registry
from tomadiff.steps.forecast import Forecast

from .families import family_of
from .sampling import FEW_STEPS, Acceleration

METHODS = ("toma", "toma-paper", "tomesd", "tofu", "todo")
_CATEGORY = "model_patches/tomadiff"


class Accelerate(io.ComfyNode):
    """A model in, the same model accelerated out."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """What the node looks like."""
        return io.Schema(
            node_id="TomadiffAccelerate",
            display_name="Accelerate model (tomadiff)",
            category=_CATEGORY,
            description="Merges tokens and forecasts denoising steps. Connect it right before the sampler.",
            inputs=[
                io.Model.Input("model"),
                io.Combo.Input(
                    "mode",
                    options=["auto", "manual"],
                    default="auto",
                    tooltip="auto: "
                    f"runs of more than {FEW_STEPS} steps are forecast, shorter ones merge; nothing below counts then.",
                ),
                io.Float.Input(
                    "ratio",
                    default=0.5,
                    min=0.0,
                    max=0.95,
                    step=0.05,
                    tooltip="manual: share of tokens removed; 0 merges nothing.",
                ),
                io.Float.Input(
                    "forecast",
                    default=0.05,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="manual: tolerance of forecast steps (relative error); 0 computes every step.",
                ),
                io.Combo.Input(
                    "method", options=list(METHODS), default=METHODS[0], tooltip="manual: how tokens merge."
                ),
                io.Boolean.Input(
                    "guard",
                    default=True,
                    tooltip="Leave tokens unmerged where merging is not expected to be faster on this machine.",
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, mode: str, ratio: float, forecast: float, method: str, guard: bool) -> io.NodeOutput:
        """Accelerate a clone; the model that was given stays as it is."""
        auto = mode == "auto"
        merging = None if auto or ratio == 0 else _method(model, method, ratio)
        steps = None if auto or forecast == 0 else Forecast(forecast)
        patcher = model.clone()
        Acceleration(merging, steps, guard, auto).put_on(patcher)
        return io.NodeOutput(patcher)


def _method(model: Any, name: str, ratio: float) -> Method:
    """The method by name, if it works on the model; an error says so now, not in the middle of a run."""
    method, _ = registry.named(name, ratio)
    require_match(method, family_of(model.model.diffusion_model))
    return method


class Summary(io.ComfyNode):
    """What an accelerated model did in its last run, as text."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """What the node looks like."""
        return io.Schema(
            node_id="TomadiffSummary",
            display_name="Show what was accelerated (tomadiff)",
            category=_CATEGORY,
            description="Give it the model that the sampler was given, and the latents that it made.",
            inputs=[io.Model.Input("model"), io.Latent.Input("after", tooltip="What the sampler made.")],
            outputs=[io.String.Output(display_name="summary"), io.Latent.Output(display_name="latent")],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, model: Any, after: Any) -> io.NodeOutput:
        """Show it; the latents pass as they are."""
        found = Acceleration.of(model)
        text = "This model is not accelerated: connect the one that the sampler was given." if found is None else ""
        text = text or (found and found.summary) or "Nothing was sampled with this model yet."
        return io.NodeOutput(text, after, ui=ui.PreviewText(text))


class Tomadiff(ComfyExtension):
    """What ComfyUI asks for."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """The nodes."""
        return [Accelerate, Summary]
