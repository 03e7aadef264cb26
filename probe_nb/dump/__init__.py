"""msProbe folders: the only room that knows how it spells things."""
