"""What a shell proposes for names of models and recipes."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from validator.recipes import catalogue, engine
from validator.tables.models import model, offered


def recipes(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Recipes of the catalogue whose name begins so."""
    return [name for name in catalogue.names() if name.startswith(begun)]


def files(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Recipes of the catalogue whose name begins so, and what files there are."""
    named = [CompletionItem(name) for name in recipes(context, parameter, begun)]
    return [*named, CompletionItem(begun, type="file")]


def copies(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Recipes and DeepSpeed files of the catalogue whose name begins so."""
    return [name for name in (*catalogue.names(), *engine.names()) if name.startswith(begun)]


def models(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Known models whose short name begins so."""
    shorts = (model(key).short or key for key in offered())
    return [name for name in shorts if name.startswith(begun)]
