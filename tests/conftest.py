"""What all tiers share: no property fails for a slow machine."""

from hypothesis import settings

settings.register_profile("radiximp", deadline=None)
settings.load_profile("radiximp")
