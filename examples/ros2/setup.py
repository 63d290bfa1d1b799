"""The ament_python package; uce-edge itself comes from pip."""

from setuptools import setup

NAME = "uce_edge_ros"

setup(
    name=NAME,
    version="0.4.0",
    description="Classifies camera images with a uce-edge model and says how far each answer can be trusted.",
    license="MIT",
    packages=[NAME],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
    ],
    install_requires=["setuptools"],
    zip_safe=True,
    entry_points={"console_scripts": [f"uce_edge_node = {NAME}.uce_edge_node:main"]},
)
