"""Jobs as objects of FLARE's own API: ``FedJob`` and ``Recipe``."""
