"""The words in which a model family is described."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from tomadiff.merging.grid import Grid
from tomadiff.merging.plan import Share

OpKind = Literal["attention", "cross_attention", "feed_forward"]

KeyBias = Literal["attention_mask", "joint_attention_kwargs"]
"""The keyword argument of a call that takes a bias of its keys, or a dictionary with it."""


@dataclass(frozen=True)
class Rows:
    """An argument that has a row for every token; rows of merged tokens are picked by destination.

    Attributes:
        argument: name of the keyword argument.
        position: its place behind ``hidden_states`` where it is given by position, else ``None``.
        axis: the token axis; 0 means there is no batch axis, so samples share destinations or run one by one.
        tables: ``"all"`` of several tensors hold image rows, or only the ``"first"`` does.
        text_first: whether rows of text that the call is given apart come before those of the image.
        square: whether the axis before holds the same tokens, as in a mask of queries × keys.
        dims: dimensions of the tensor where it has such rows, if it does not always.
    """

    argument: str
    position: int | None = None
    axis: int = 0
    tables: Literal["all", "first"] = "all"
    text_first: bool = False
    square: bool = False
    dims: int | None = None


@dataclass(frozen=True)
class Rotary(Rows):
    """Where a call takes its rotary tables from."""


@dataclass(frozen=True)
class Mask(Rows):
    """Where a call takes a mask of its keys from, ``(B, …, S)``."""

    axis: int = -1


@dataclass(frozen=True)
class Op:
    """A call inside a block that tokens can merge around.

    Attributes:
        path: attribute of the block, such as ``"attn1"``.
        kind: what it computes.
        rotary: its rotary tables, if it has any.
        outputs: which items are image-length where it returns a tuple.
        joint: whether it is attention of the joint kind, over text and image that are given apart.
        key_bias: how it takes a bias of its keys, if it does.
        sequence: which of :attr:`TokenLayout.sequences` it is given; by default the image's.
        mask: its mask over image tokens; ``"text"`` if the mask that it is given covers the text alone. A call with any
            other mask runs unmerged.
        rows: other arguments with a row for every token.
        again: arguments that hold the same tokens once more.
        whole: an argument that belongs to the whole batch, such as a cache; where it is given, samples that would have
            to run one by one stay unmerged.
        serves_text: whether the same module is called with the text in turn.
        tokens_first: whether tokens come before samples, ``(N, B, C)``; for feed-forward alone.
        names: what it calls its arguments, as far as that is not what diffusers calls them.
        in_place: whether it writes into the tokens that it is given.
    """

    path: str
    kind: OpKind
    rotary: Rotary | None = None
    outputs: tuple[int, ...] = (0,)
    joint: bool = False
    key_bias: KeyBias | None = None
    sequence: str = ""
    mask: Mask | Literal["text"] | None = None
    rows: tuple[Rows, ...] = ()
    again: tuple[str, ...] = ()
    whole: str = ""
    serves_text: bool = False
    tokens_first: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    in_place: bool = False

    @property
    def words(self) -> str:
        """What it computes, for people."""
        among = "joint attention" if self.joint or self.sequence else "self-attention"
        return {"attention": among, "cross_attention": "cross-attention", "feed_forward": "feed-forward"}[self.kind]


@dataclass(frozen=True)
class Block:
    """A class of transformer blocks.

    Attributes:
        name: the class's name.
        ops: the calls inside that tokens can merge around; none if only the whole block can be wrapped.
        rotary: rotary tables that the block itself is given.
        outputs: which items are image-length where the block returns a tuple.
        pooled: self-attention that cannot be wrapped alone for merging, but can be given fewer keys.
        key_bias: how the whole block takes a bias of its attention's keys, if it does.
        sequence: which of :attr:`TokenLayout.sequences` the block is given.
        mask, rows, whole, names, in_place: as of an op.
        only_ops: whether the whole block cannot be wrapped: its ops are, where whole blocks are asked for.
    """

    name: str
    ops: tuple[Op, ...] = ()
    rotary: Rotary | None = None
    outputs: tuple[int, ...] = (0,)
    pooled: tuple[Op, ...] = ()
    key_bias: KeyBias | None = None
    sequence: str = ""
    mask: Mask | Literal["text"] | None = None
    rows: tuple[Rows, ...] = ()
    whole: str = ""
    only_ops: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    in_place: bool = False

    # What only ops have, so that a call can be asked whichever it is.
    joint: ClassVar[bool] = False
    again: ClassVar[tuple[str, ...]] = ()
    serves_text: ClassVar[bool] = False
    tokens_first: ClassVar[bool] = False


@dataclass(frozen=True)
class Stack:
    """Consecutive blocks that see one grid; ``depth`` counts how often the grid was halved before them.

    ``home`` is the module that makes tokens of an image before the blocks, and an image of tokens after them.
    """

    name: str
    blocks: tuple[nn.Module, ...]
    depth: int = 0
    home: nn.Module | None = None


@dataclass(frozen=True)
class TokenLayout:
    """What a call of the model shows: the grid of every depth, and tokens around it that are no part of it.

    Attributes:
        grids: by depth.
        tail: tokens behind the grid.
        head: tokens before the grid.
        sequences: head and tail of calls that are given other tokens too, by the name in :attr:`Op.sequence`.
        text: tokens of the text, where a module serves both.
    """

    grids: Mapping[int, Grid]
    tail: int = 0
    head: int = 0
    sequences: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    text: int = 0

    @classmethod
    def flat(cls, grid: Grid, tail: int = 0, **others: Any) -> TokenLayout:
        """A model whose blocks all see one grid."""
        return cls({0: grid}, tail, **others)

    def around(self, sequence: str = "") -> tuple[int, int]:
        """Head and tail of one kind of call."""
        return self.sequences.get(sequence, (self.head, self.tail))

    @property
    def surroundings(self) -> tuple[tuple[int, int], ...]:
        """Head and tail of every kind of call."""
        return ((self.head, self.tail), *self.sequences.values())


class ModelCall:
    """The arguments of a model's call, by name however they were given."""

    def __init__(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], family: Family | None = None
    ) -> None:
        self.arguments = dict(zip(parameters_of(type(model).forward), args, strict=False)) | dict(kwargs)
        self.names = ("", "timestep") if family is None else (family.image, family.timestep)
        if family is not None and family.names:
            self.arguments = {family.names.get(name, name): value for name, value in self.arguments.items()}

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @cached_property
    def image(self) -> Tensor:
        """What is denoised: ``sample`` in UNets, ``hidden_states`` in transformers, or as the family calls it.

        Samples that come as a list are stacked; of several sizes, the first alone.
        """
        given = self[self.names[0]]
        if isinstance(given, list) and isinstance(given[0], Tensor):
            return torch.stack(given if len({one.shape for one in given}) == 1 else given[:1])
        named = [given, self["sample"], self["hidden_states"], *self.arguments.values()]
        first: Tensor = next(value for value in named if isinstance(value, Tensor))
        return first

    @property
    def timestep(self) -> Any:
        """The time of the call."""
        return self[self.names[1]]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the tensors given."""
        return tuple(tuple(value.shape) for value in self.arguments.values() if isinstance(value, Tensor))


@lru_cache(maxsize=64)
def parameters_of(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters of a class's ``forward``, without ``self``."""
    return tuple(inspect.signature(forward).parameters)[1:]


def stacks_named(*paths: str) -> Callable[[nn.Module], list[Stack]]:
    """Stacks that are lists of blocks under these attributes, all on one grid."""

    def stacks(model: nn.Module) -> list[Stack]:
        return [Stack(path, tuple(getattr(model, path))) for path in paths]

    return stacks


def order_matters(_: nn.Module, __: ModelCall) -> bool:
    """Positions are part of most models; see :attr:`Family.order_matters`."""
    return True


@dataclass(frozen=True)
class Family:
    """Everything that tomadiff knows about a kind of model.

    Attributes:
        name: short name.
        title: what people call it.
        models: names of the model classes.
        blocks: the classes of its blocks.
        stacks: finds the blocks of a model, in the order they run.
        token_layout: finds the grids of a call.
        pipelines: some pipelines that use it.
        skip: share of first blocks that stay unmerged by default.
        share: where rotary tables have no batch axis; samples with destinations of their own then run one by one.
        defaults: settings that suit the family, for methods that have them and leave them open.
        order_matters: whether the blocks of a call know where their tokens lie (by positions, masks, …). If not, tokens
            are put in the order of the plan's regions once per stack that has a home, instead of around every op.
        bias_backends: attention backends that take a bias of their keys, as diffusers names them; none: no attention
            of the family takes one.
        reads: arguments whose values the layout is read from, once for each tensor: reading waits for the GPU.
        image: name of the argument that is denoised, where it is neither ``sample`` nor ``hidden_states``.
        timestep: name of the argument that holds the time.
        names: what the model calls its other arguments, as far as that is not what diffusers calls them.
        note: what stays unmerged, when and why; ``registry.NEVER_MERGED`` says what holds for all.
    """

    name: str
    title: str
    models: tuple[str, ...]
    blocks: tuple[Block, ...]
    stacks: Callable[[nn.Module], list[Stack]] = field(repr=False)
    token_layout: Callable[[nn.Module, ModelCall], TokenLayout | None] = field(repr=False)
    pipelines: tuple[str, ...] = ()
    skip: float = 0.0
    share: Share | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    order_matters: Callable[[nn.Module, ModelCall], bool] = field(default=order_matters, repr=False)
    bias_backends: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    image: str = ""
    timestep: str = "timestep"
    names: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def merges(self) -> str:
        """What merges, in words."""
        ops = [op.words for block in self.blocks for op in block.ops]
        whole = [f"{block.name} as a whole" for block in self.blocks if not block.ops]
        return ", ".join(dict.fromkeys(ops + whole))

    def block(self, module: nn.Module) -> Block | None:
        """What is known about a block, by its class or a class it derives from."""
        names = [known.__name__ for known in type(module).__mro__]
        return next((block for block in self.blocks if block.name in names), None)
