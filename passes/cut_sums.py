"""The part of the table of ``cuts`` that adds up: products, images, norms, attention, losses, reductions."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from dtr_fx.passes.cut_forms import Call, Form, Label, Labels, Made, Rules, broadcast, named, numbers

RULES = Rules()


def _over(*labels: Label) -> frozenset[Label]:
    return frozenset(labels)


# --- products ----------------------------------------------------------------------------------------------


@RULES.of("mm", operands="self mat2", batch="")
@RULES.of("addmm", operands="mat1 mat2", batch="")
@RULES.of("bmm", operands="self mat2", batch="b")
@RULES.of("baddbmm", operands="batch1 batch2", batch="b")
def _product(call: Call, *, operands: str, batch: str) -> Form:
    """A product; with a summand it is not cut along its sum, as every slice would add that."""
    left, right = operands.split()
    made = [*batch, "i", "j"]
    reads = call.reads({left: [*batch, "i", "k"], right: [*batch, "k", "j"]})
    if left == "self":
        return Form(reads, [Made(made, _over("k"))], _over("b", "i", "j"))
    added = [
        made[label] if isinstance(label, int) else None
        for label in broadcast(call.shape("self"), call.made())
    ]
    return Form([*reads, *call.reads({"self": added})], [Made(made)], _over("b", "i", "j"))


@RULES.of("convolution")
def _convolution(call: Call) -> Form:
    rest: list[Label | None] = [None] * (len(call.made()) - 2)
    weight = _weight(call)
    reads = {"input": ["n", weight[2], *rest], "weight": [*weight[:2], *rest], "bias": [weight[3]]}
    over = _over("i") if call["bias"] is None else _over()
    return Form(call.reads(reads), [Made(["n", weight[3], *rest], over)], _over("n", "o"))


def _weight(call: Call) -> tuple[Label | None, ...]:
    """The labels of a weight's first two dimensions, then those of input and output channels."""
    if call["groups"] != 1:
        return None, None, None, None
    return ("i", "o", "i", "o") if call["transposed"] else ("o", "i", "i", "o")


@RULES.of("convolution_backward")
def _convolution_backward(call: Call) -> Form:
    rest: list[Label | None] = [None] * (len(call.shape("input")) - 2)
    one, other, i, o = _weight(call)
    reads = call.reads(
        {"grad_output": ["n", o, *rest], "input": ["n", i, *rest], "weight": [one, other, *rest]}
    )
    makes = Made(["n", i, *rest], _over("o")), Made([one, other, *rest], _over("n")), Made([o], _over("n"))
    biases = call["bias_sizes"]
    return Form(reads, makes, _over("n", "o", "i"), {"bias_sizes": ([o], biases)} if biases else {})


# --- images: per image, and per channel --------------------------------------------------------------------


@RULES.of("max_pool2d_with_indices max_pool2d_with_indices_backward adaptive_max_pool2d", measured="")
@RULES.of("adaptive_max_pool2d_backward", measured="")
@RULES.of("avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward", measured="nc")
@RULES.of("upsample_nearest1d upsample_nearest2d upsample_nearest2d.vec upsample_bilinear2d", measured="nc")
@RULES.of("upsample_bilinear2d.vec upsample_bicubic2d upsample_bicubic2d.vec", measured="nc")
@RULES.of("upsample_nearest1d_backward upsample_nearest2d_backward", measured="nc")
@RULES.of("upsample_bilinear2d_backward upsample_bicubic2d_backward", measured="nc")
@RULES.of(
    "reflection_pad2d replication_pad2d reflection_pad2d_backward replication_pad2d_backward", measured="nc"
)
def _of_images(call: Call, *, measured: str) -> Form | None:
    rank = 3 if call.name.startswith("upsample_nearest1d") else 4
    if len(call.made()) != rank:
        return None
    labels: Labels = ["n", "c", *[None] * (rank - 2)]
    operands = call.reads(dict.fromkeys(("grad_output", "self", "input", "indices"), labels))
    shapes = {"input_size": (labels, call.made())} if "input_size" in call.given else {}
    return Form(operands, [Made(labels)] * len(call.results), frozenset(measured), shapes)


@RULES.of(
    "_native_batch_norm_legit_functional native_batch_norm_backward _native_batch_norm_legit_no_training"
)
def _batch_norm(call: Call) -> Form:
    """Along the channels."""
    operands = [value for value in call.given.values() if isinstance(value, Node)]

    def labels(shape: Sequence[int]) -> Labels:
        return ["c"] if len(shape) == 1 else [None, "c", *[None] * (len(shape) - 2)]

    makes = [None if result is None else Made(labels(result.shape)) for result in call.results]
    return Form([(node, labels(node.meta["val"].shape)) for node in operands], makes, _over("c"))


@RULES.of("native_group_norm")
def _group_norm(call: Call) -> Form:
    labels: Labels = ["n", *[None] * (len(call.made()) - 1)]
    rows = Made(["n", None])
    reads = call.reads({"input": labels, "weight": None, "bias": None})
    return Form(reads, [Made(labels), rows, rows], _over("n"), {"N": (["n"], [call["N"]])})


@RULES.of("native_group_norm_backward")
def _group_norm_backward(call: Call) -> Form:
    labels: Labels = ["n", *[None] * (len(call.shape("input")) - 1)]
    rows: Labels = ["n", None]
    reads = call.reads({"grad_out": labels, "input": labels, "mean": rows, "rstd": rows, "weight": None})
    makes = Made(labels), Made([None], _over("n")), Made([None], _over("n"))
    return Form(reads, makes, _over("n"), {"N": (["n"], [call["N"]])})


# --- rows --------------------------------------------------------------------------------------------------


@RULES.of("_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data")
def _softmax(call: Call) -> Form:
    """Rows in memory are independent; of other dimensions several lanes make a vector."""
    rank = len(call.made())
    dim = call.dim("dim", rank)
    labels = named(rank, [dim])
    operands = dict.fromkeys(("self", "grad_output", "output"), labels)
    measured = numbers(rank) if call.name == "_safe_softmax" or dim != rank - 1 else frozenset()
    return Form(call.reads(operands), [Made(labels)], measured)


@RULES.of("native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward")
def _layer_norm(call: Call) -> Form:
    shape, normalized = call.shape("input"), len(call["normalized_shape"])
    rows = len(shape) - normalized
    labels = named(len(shape), range(rows, len(shape)))
    operands: dict[str, Labels | None] = dict.fromkeys(("input", "grad_out", "mean", "rstd"), labels)
    weights = Made([None] * normalized, numbers(rows))
    if "output_mask" in call.given:
        makes = [Made(labels), weights, weights][: len(call.results)]
    else:
        makes = [Made(labels)] * len(call.results)
    measured = numbers(rows) if "rms" in call.name else frozenset()
    reads = call.reads({**operands, "weight": None, "bias": None})
    return Form(reads, makes, measured, leading="output_mask" in call.given)


@RULES.of("_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward")
def _attention(call: Call) -> Form | None:
    """Per sequence, and per head unless heads of the query share one of the keys."""
    shape = call.shape("query")
    heads = "h" if call.shape("key")[1] == shape[1] else None
    query: Labels = ["b", heads, None, None]
    mask: Labels = ()
    if call["attn_mask"] is not None:
        sizes = (*shape[:2], *call.shape("attn_mask")[-2:])
        mask = [
            query[label] if isinstance(label, int) else None
            for label in broadcast(call.shape("attn_mask"), sizes)
        ]
    operands = dict.fromkeys(("query", "key", "value", "out", "grad_out"), query)
    reads = call.reads({**operands, "logsumexp": query[:3], "attn_mask": mask})
    makes = [Made(query[: len(result.shape)]) for result in call.results]
    return Form(reads, makes, _over("b", "h")) if call["dropout_p"] == 0 else None


@RULES.of("nll_loss_forward nll_loss2d_forward")
def _nll_loss(call: Call) -> Form | None:
    """Without a reduction; the total weight is then zero, which nothing reads."""
    if call["reduction"] != 0 or call["weight"] is not None or len(call.shape("self")) == 1:
        return None
    rows: Labels = ["n", *[None] * (len(call.made()) - 1)]
    reads = call.reads({"self": ["n", *[None] * len(rows)], "target": rows})
    return Form(reads, [Made(rows), Made((), _over("n")) if call.reads_result(1) else None])


@RULES.of("nll_loss_backward nll_loss2d_backward")
def _nll_loss_backward(call: Call) -> Form | None:
    """The whole loss's gradient and total weight are read by every slice."""
    if len(call.shape("self")) == 1:
        return None
    rows: Labels = ["n", *[None] * (len(call.shape("target")) - 1)]
    made: Labels = ["n", *[None] * len(rows)]
    reads = {"grad_output": rows if call["reduction"] == 0 else (), "self": made, "target": rows}
    return Form(call.reads({**reads, "weight": None, "total_weight": None}), [Made(made)])


# --- reductions --------------------------------------------------------------------------------------------


@RULES.of("amax amin max.dim min.dim argmax argmin any any.dim any.dims all all.dim all.dims", measured=False)
@RULES.of("mean mean.dim var.correction var_mean.correction std.correction prod.dim_int", measured=True)
@RULES.of("logsumexp linalg_vector_norm", measured=True)
@RULES.of("sum sum.dim_IntList", measured=True, adds=True)
def _reduction(call: Call, *, measured: bool, adds: bool = False) -> Form | None:
    rank = len(call.shape("self"))
    gone = call.dims("dim", rank) if call.given.get("dim") is not None else frozenset(range(rank))
    labels = named(rank, gone)
    kept: Labels = labels if call.given.get("keepdim") else [label for label in labels if label is not None]
    if adds:
        labels = named(rank)
    makes = [Made(kept, frozenset(gone) if adds else frozenset())] * len(call.results)
    return Form(call.reads({"self": labels}), makes, numbers(rank) if measured else frozenset())
