"""The built-in mixers, one file a family. Importing this package registers them."""

from tokmix.layers import (  # noqa: F401
    attention,
    fnet,
    gmlp,
    hsm,
    hypermixing,
    hypermlp,
    identity,
    linear_attention,
    mlp_mixer,
    relu_attention,
    shared_vector,
)
