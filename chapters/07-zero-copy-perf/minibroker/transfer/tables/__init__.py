"""The tables of the APIs that chapter 07 serves. A pure package."""
