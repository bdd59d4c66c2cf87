"""What is done besides deriving: manifests are begun, filled, given their index and activated,
and what was missed, lost or left over is put right.

Each step is bounded, safe twice and safe side by side: workers, beat and the command call them
without asking each other.
"""

from __future__ import annotations

from semantic import indexes, transitions
from semantic.embedders import factory
from semantic.models import Manifest


def begin_configured() -> Manifest:
    """Return the manifest of the embedder that the settings name, begun now if there is none.

    Raises:
        ProviderFailed: the embedder cannot say what it is now. Nothing is written.
    """
    return transitions.ensure(factory.from_settings().identity)


def building() -> Manifest | None:
    """Return the manifest that is being filled, if there is one."""
    return Manifest.objects.filter(state=Manifest.State.BUILDING).first()


def lag(manifest: Manifest) -> transitions.Lag:
    """Return what the manifest still lacks that it must not answer without."""
    return transitions.lag(manifest.pk)


def shortfall(manifest: Manifest) -> transitions.Shortfall:
    """Return what would not be found if the manifest took over."""
    return transitions.shortfall(manifest.pk)


def fill(manifest: Manifest) -> bool:
    """Enqueue some of what the manifest lacks; return whether there may be more."""
    return transitions.backfill(manifest.pk) > 0


def needs_index(manifest: Manifest) -> bool:
    """Return whether the manifest ought to have an index and has none."""
    return not indexes.is_built(manifest) and indexes.is_wanted(manifest)


def to_index() -> list[Manifest]:
    """Return the answering manifest if it has outgrown what is compared one by one."""
    active = Manifest.objects.filter(state=Manifest.State.ACTIVE)
    return [manifest for manifest in active if needs_index(manifest)]


def activate(manifest: Manifest) -> bool:
    """Let the manifest answer if it has caught up by now; return whether it does."""
    return lag(manifest).is_over and transitions.activate_when_complete(manifest.pk)


def reconcile() -> bool:
    """Make one bounded look for missing, expired and left-over rows; return whether it found
    some and more may be left."""
    found = transitions.reconcile()
    changed = found.enqueued or found.retried or found.exhausted or found.cleared
    return bool(changed and found.more)
