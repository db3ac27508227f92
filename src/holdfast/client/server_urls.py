"""The URLs of a cell's servers as one text. Only the standard library, because commands start with it."""

from __future__ import annotations


def split_urls(text: str) -> tuple[str, ...]:
    """The servers of a cell: one URL, or several separated by commas."""
    return tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip()) or ("",)


def starting_at(urls: tuple[str, ...], number: int) -> tuple[str, ...]:
    """The same servers, beginning at another one, so that clients spread over them."""
    first = number % len(urls)
    return (*urls[first:], *urls[:first])
