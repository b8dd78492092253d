"""Where an index lies: named objects in a folder or in a bucket of an object store."""

from builder.publish.index.objects.folder import Folder
from builder.publish.index.objects.protocol import Objects

__all__ = ["Folder", "Objects"]
