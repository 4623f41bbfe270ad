"""subtune under other tools' interfaces."""
