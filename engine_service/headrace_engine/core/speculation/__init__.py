"""Drafts ids that sequences are likely to generate, so that several are computed in one step."""
