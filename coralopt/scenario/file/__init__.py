"""The shape of a scenario file: its sections as pydantic models, checked without looking any name up."""
