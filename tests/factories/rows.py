"""What the factories of every app have in common."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Generic, TypeVar

import factory
from django.db.models import Model
from django.db.models.functions import Now
from factory.django import DjangoModelFactory

M = TypeVar("M", bound=Model)

Trait = factory.Trait
Now_ = factory.LazyFunction(Now)


def after(**time: float) -> Any:
    """Return a moment that is so far from now."""
    return factory.LazyFunction(lambda: Now() + timedelta(**time))


def ending(state: str, code: str = "") -> Any:
    """Return the trait of an end: its state, its time, its code."""
    return Trait(state=state, finished_at=Now_, error_code=code)


class RowFactory(DjangoModelFactory[M], Generic[M]):
    """Creates the row and reads it back, so that the database's times are values."""

    class Meta:
        abstract = True

    @classmethod
    def _create(cls, model_class: type[M], *args: Any, **kwargs: Any) -> M:
        row: M = super()._create(model_class, *args, **kwargs)
        row.refresh_from_db()
        return row
