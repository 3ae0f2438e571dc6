"""What people look at: tables and drawings of plans and libraries."""

from coralopt.report.library import export_library, plot_spread, stages_text
from coralopt.report.tables import demand_table, instance_table, pipeline_drawing, plan_summary, plan_view

__all__ = [
    "demand_table",
    "export_library",
    "instance_table",
    "pipeline_drawing",
    "plan_summary",
    "plan_view",
    "plot_spread",
    "stages_text",
]
