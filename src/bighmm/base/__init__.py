"""Small tools without knowledge of HMMs: files, caching, registries, settings, random numbers."""

__all__: list[str] = []
