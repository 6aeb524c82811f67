"""A causal transformer that knows nothing of words, and pretrained ones read from their files."""

from bighmm.model.networks.backbone import Backbone, BackboneConfig
from bighmm.model.networks.pretrained import (
    Pretrained,
    load_hugging_face,
    load_own,
    load_pretrained,
)

__all__ = [
    "Backbone",
    "BackboneConfig",
    "Pretrained",
    "load_hugging_face",
    "load_own",
    "load_pretrained",
]
