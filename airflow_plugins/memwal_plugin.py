"""The plugin, for an Airflow that has this folder as its plugins folder (see .airflowignore).

That gives it the page, operators and triggers. The `memwal` connection type is only there when the
package is installed: Airflow learns of connection types from installed packages.
"""

from memwal_airflow.plugin import MemWalPlugin

__all__ = ["MemWalPlugin"]
