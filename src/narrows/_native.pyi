"""
Narrows' native core: packing, the forward pass, and the selection of tokens.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

def isa() -> str:
    """The ISA level in use."""

def isas() -> list[str]:
    """The ISA levels this machine can run, slowest first."""

def alloc_huge(num_bytes: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """Zeroed bytes on huge pages where the kernel gives them."""

def read_bandwidth(num_bytes: int, num_threads: int, repeats: int = 3) -> list[float]:
    """GB/s of reading a buffer once, per repeat."""

def gguf_format(type: int) -> tuple[int, int, bool, bool, str] | None:
    """
    (bits, group, minimum, two_level, type) of the format that holds a GGUF tensor type exactly, or None.
    """

def gguf_row_bytes(type: int, cols: int) -> int:
    """
    Bytes of a row of a GGUF type; 0 when cols is not a whole number of blocks.
    """

def packed_bytes(format: object, rows: int, cols: int) -> int: ...
def pack_gguf(
    type: int,
    src: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    rows: int,
    cols: int,
    dst: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    num_threads: int = 1,
) -> None: ...
def pack_float(
    format: object,
    w: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    dst: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    num_threads: int = 1,
) -> None: ...
def pack_sparse(
    format: object,
    codes: object,
    mask: Annotated[NDArray[numpy.bool_], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    scales: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    num_threads: int = 1,
    isa: str = "",
) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """
    Bytes of the kept weights in a sparse format, as a level's products like them best: codes [rows, cols] uint8
    (uint16 for bf16), mask [rows, cols] bool, scales [rows, groups] as the uint16 bits of float16.
    """

def unpack_row(packed: object, row: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]: ...
def matmul(
    packed: object,
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    isa: str = "",
) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
    """y [T, rows] = x [T, cols] w^T through the kernels, one thread."""

def time_products(matrices: list, rows: int, num_threads: int, repeats: int, isa: str = "") -> list[float]:
    """
    Seconds of each of `repeats` passes over packed matrices of equal cols, `rows` rows of activations each.
    """

def argmax(
    logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
    """logits [R, V] -> ids [R]"""

def sample(
    logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    uniform: float,
) -> int: ...
def log_sum_exp(
    logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
    """logits [R, V] -> float64 [R]"""

def top_k(
    logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)], k: int
) -> tuple[
    Annotated[NDArray[numpy.int32], dict(shape=(None, None))],
    Annotated[NDArray[numpy.float32], dict(shape=(None, None))],
]:
    """logits [R, V] -> (ids [R, k], values [R, k]), largest first"""

PAGE_SIZE: int = 64

class Model:
    """Weights, KV pages and threads of one model."""

    def __init__(
        self,
        spec: dict,
        tensors: dict,
        page_size: int,
        num_pages: int,
        num_threads: int,
        isa: str = "",
        kv_of: Model | None = None,
    ) -> None: ...
    def forward(
        self,
        tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        cu_seqlens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        context_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        page_table: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        logit_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
    ) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """One step over a batch (see ForwardBatch): logits [R, V] as float32."""

    def states(
        self,
        tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        cu_seqlens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        context_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        page_table: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        logit_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
        layers: Sequence[int],
        final_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
        features: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None = None,
    ) -> tuple[
        Annotated[NDArray[numpy.float32], dict(shape=(None, None))],
        Annotated[NDArray[numpy.float32], dict(shape=(None, None))],
        Annotated[NDArray[numpy.float32], dict(shape=(None, None))],
    ]:
        """
        One step, and hidden states: logits [R, V]; the residual stream before each of `layers` (their number: behind
        the last) for all rows, [T, len(layers) * H]; what the final norm gives at `final_rows`, [E, H]. A drafting
        head reads `features` [T, H] beside the tokens.
        """

    def inputs(
        self,
        tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        cu_seqlens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        context_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        page_table: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        wanted: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    ) -> list[Annotated[NDArray[numpy.float32], dict(shape=(None, None))]]:
        """
        One step without logits: for each (layer, input) of wanted [N, 2] the input of its products at these rows, as
        float32 [rows, width]. Inputs are 0 q/k/v, 1 o, 2 gate/up, 3 down, 4 head (of the layer after the last).
        """

    def draft_chain(
        self,
        tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        context_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        page_table: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        counts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        ends: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
        features: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None = None,
    ) -> tuple[
        Annotated[NDArray[numpy.int32], dict(shape=(None, None))],
        Annotated[NDArray[numpy.float32], dict(shape=(None, None))],
        Annotated[NDArray[numpy.int32], dict(shape=(None,))],
        Annotated[NDArray[numpy.float32], dict(shape=(None, None))],
    ]:
        """
        Reads a token of each request, takes the likeliest to follow it, reads that, and so on: counts [B] of them, or
        up to one of `ends`. context_lens [B] are before the first; logits are of `ids`. Returns tokens [B, K],
        log-probabilities [B, K], how many there are [B], and a drafting head's own states behind what it read last
        [B, H].
        """

    @property
    def weight_bytes(self) -> int: ...
    @property
    def kv_bytes(self) -> int: ...
    @property
    def kv_bytes_per_token(self) -> int: ...
    @property
    def num_pages(self) -> int: ...
