"""HORA's own import name: `hora_rl.common`, `hora_rl.allocator`, … wherever HORA is installed.

A checkout keeps its folders at the top (`common/`, `deploy/`, …). An installed wheel has them in this
package, so a project keeps a `common/` of its own. Both names lead to one module (`hora_rl.names`).
"""

from hora_rl import names as _names

_names.install()
