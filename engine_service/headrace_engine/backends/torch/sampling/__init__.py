"""From logits to sampled ids, with everything that requests change or report of them."""
