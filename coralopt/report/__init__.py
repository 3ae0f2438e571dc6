"""What people look at: tables and drawings of plans."""

from coralopt.report.tables import demand_table, instance_table, pipeline_drawing, plan_summary, plan_view

__all__ = ["demand_table", "instance_table", "pipeline_drawing", "plan_summary", "plan_view"]
