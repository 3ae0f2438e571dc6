"""Result files as web pages: one self-contained HTML file each."""

from coralopt.report.pages.page import Page, render_page
from coralopt.report.pages.plan import PlanPage, plan_page

__all__ = ["Page", "PlanPage", "plan_page", "render_page"]
