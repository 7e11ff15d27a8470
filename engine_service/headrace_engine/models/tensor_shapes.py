"""The shapes of the tensors that a decoder needs, by canonical name."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_engine.models.spec import DecoderSpec, NormPlacement, QkNorm


def expected_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that the decoder needs, by canonical name; a matrix is [outputs, inputs]."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (spec.vocab_size, spec.hidden_size)}
    for index in range(spec.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in _layer_shapes(spec, index).items()}
    shapes |= _with_biases({"final_norm": (spec.hidden_size,)}, spec)
    if not spec.tied_head:
        shapes["head"] = (spec.vocab_size, spec.hidden_size)
    if spec.head_bias:
        shapes["head_bias"] = (spec.vocab_size,)
    return shapes


def _layer_shapes(spec: DecoderSpec, index: int) -> dict[str, tuple[int, ...]]:
    hidden = spec.hidden_size
    matrices = {
        **_attention_matrices(spec),
        "o": (hidden, spec.query_width, spec.output_bias),
        **(_experts_matrices(spec) if spec.layers[index].experts else _mlp(spec)),
    }
    shapes = _norm_shapes(spec) | ({"sinks": (spec.num_heads,)} if spec.sinks else {})
    if spec.layers[index].experts and spec.experts is not None and spec.experts.corrected:
        shapes["router_correction"] = (spec.experts.count,)
    for name, (outputs, inputs, has_bias) in matrices.items():
        shapes[name] = (outputs, inputs)
        if has_bias:
            shapes[f"{name}_bias"] = (outputs,)
    return shapes


def _attention_matrices(spec: DecoderSpec) -> dict[str, tuple[int, int, bool]]:
    hidden, latent = spec.hidden_size, spec.latent
    if latent is None:
        widths = {"q": spec.query_width, "k": spec.kv_width, "v": spec.kv_width}
        return {name: (width, hidden, spec.qkv_bias) for name, width in widths.items()}
    queries = {"q_latent": (latent.query_rank, hidden, spec.qkv_bias)} if latent.query_rank else {}
    return {
        **queries,
        "q": (spec.query_width, latent.query_rank or hidden, False),
        "latent": (latent.rank, hidden, spec.qkv_bias),
        "k_shared": (spec.rotary_dim, hidden, spec.qkv_bias),
        "k": (spec.kv_width, latent.rank, False),
        "v": (spec.kv_width, latent.rank, False),
        "k_spread": (spec.kv_width, spec.rotary_dim, False),
    }


def _mlp(spec: DecoderSpec) -> dict[str, tuple[int, int, bool]]:
    matrices = _mlp_matrices(spec.hidden_size, "", spec.intermediate_size, spec.mlp_bias)
    return matrices if spec.mlp_gate else {name: shape for name, shape in matrices.items() if name != "gate"}


def _mlp_matrices(hidden: int, prefix: str, wide: int, bias: bool) -> dict[str, tuple[int, int, bool]]:
    shapes = {"gate": (wide, hidden, bias), "up": (wide, hidden, bias), "down": (hidden, wide, bias)}
    return {f"{prefix}{name}": shape for name, shape in shapes.items()}


def _experts_matrices(spec: DecoderSpec) -> dict[str, tuple[int, int, bool]]:
    experts, hidden = spec.experts, spec.hidden_size
    assert experts is not None
    matrices = {"router": (experts.count, hidden, experts.bias)}
    for number in range(experts.count):
        matrices |= _mlp_matrices(hidden, f"experts.{number}.", experts.width, experts.bias)
    if experts.shared_width:
        matrices |= _mlp_matrices(hidden, "shared_", experts.shared_width, spec.mlp_bias)
    if experts.shared_gate:
        matrices["shared_score"] = (1, hidden, False)
    return matrices


def _norm_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    hidden = (spec.hidden_size,)
    shapes: dict[str, tuple[int, ...]] = {}
    if spec.norms is not NormPlacement.AFTER:
        shapes |= {"input_norm": hidden}
        shapes |= {} if spec.parallel and not spec.parallel_norms else {"post_norm": hidden}
    if spec.norms is not NormPlacement.BEFORE:
        shapes |= {"attention_out_norm": hidden, "mlp_out_norm": hidden}
    shapes = _with_biases(shapes, spec)
    if spec.qk_norm is QkNorm.HEAD:
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    if spec.qk_norm is QkNorm.WHOLE:
        shapes |= {"q_norm": (spec.query_width,), "k_norm": (spec.kv_width,)}
    if spec.latent is not None:
        shapes |= {"latent_norm": (spec.latent.rank,)}
        shapes |= {"q_latent_norm": (spec.latent.query_rank,)} if spec.latent.query_rank else {}
    return shapes


def _with_biases(norms: Mapping[str, tuple[int, ...]], spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    return {**norms, **({f"{name}_bias": shape for name, shape in norms.items()} if spec.norm_bias else {})}
