"""Scalars of a run for FLARE's tracking receivers (TensorBoard, MLflow, or another component of the job).

FLARE's own way, by which sites send metrics as federated events, passes no filter of task results. Here the server sends its
receivers the metrics of the sites' answers, after their filters: a tracker gets nothing that is not in the run's record.
"""

from __future__ import annotations

from collections.abc import Mapping

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FedEventHeader, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.analytix_utils import create_analytic_dxo

EVENT = f"fed.{ANALYTIC_EVENT_TYPE}"
INCOMING = "in"


def track(component: FLComponent, fl_ctx: FLContext, site: str, step: int, scalars: Mapping[str, float]) -> None:
    """Send scalars of a site to the server's tracking receivers; without receivers nothing happens."""
    with fl_ctx.get_engine().new_context() as context:
        for name, value in scalars.items():
            data = create_analytic_dxo(name, float(value), AnalyticsDataType.SCALAR, global_step=step).to_shareable()
            data.set_peer_props({ReservedKey.IDENTITY_NAME: site})
            # As if the event had come from the site; one that goes out would be sent to all of them.
            data.set_header(FedEventHeader.DIRECTION, INCOMING)
            component.fire_fed_event(EVENT, data, context)
