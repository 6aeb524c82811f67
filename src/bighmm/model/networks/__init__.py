"""Networks of parameterisations and baselines.

`backbone` is a causal transformer from vectors to vectors, `pretrained` reads such networks from
files, and `state_networks` compute vectors from the embeddings of states.
"""

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
