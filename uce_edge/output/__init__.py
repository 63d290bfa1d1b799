"""Answers and evaluations for people and programs: pictures, notebooks, tables, reports."""
