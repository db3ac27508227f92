"""Calls about certificates: joining, renewal, the trusted CAs, and the keys that servers of a cell share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from holdfast.model.errors import Ambiguous
from holdfast.model.join import (
    CellRequests,
    JoinRequest,
    JoinResponse,
    MaterialRequest,
    RegionJoinResponse,
    RenewalRequest,
    SealedMaterial,
    TrustBundle,
)
from holdfast.model.meta import ApiStruct


class CertificateCalls(ABC):
    """Part of `HttpClient`, which sends the calls."""

    @abstractmethod
    async def _call(
        self,
        method: str,
        path: str,
        *,
        verb: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
    ) -> bytes: ...

    async def join(self, request: JoinRequest) -> JoinResponse:
        """The token in the request is the credential. A retry with the same key is safe."""
        return await self._request_certificate("/join/v1", request, "join")

    async def renew_certificate(self, request: RenewalRequest) -> JoinResponse:
        return await self._request_certificate("/join/v1/renew", request, "renew_certificate")

    async def _request_certificate(self, path: str, request: ApiStruct, verb: str) -> JoinResponse:
        response = await self._call("POST", path, body=msgspec.json.encode(request), verb=verb)
        try:
            return msgspec.json.decode(response, type=JoinResponse)
        except msgspec.DecodeError as error:
            raise Ambiguous(f"{verb}: cannot decode the response ({error})") from error

    async def trust_bundle(self) -> TrustBundle:
        """The CA certificates that the cell trusts now, its servers, and revoked servers."""
        return msgspec.json.decode(await self._call("GET", "/join/v1/ca", verb="trust_bundle"), type=TrustBundle)

    async def renew_region_certificates(self, request: CellRequests) -> RegionJoinResponse:
        body = msgspec.json.encode(request)
        response = await self._call("POST", "/join/v1/region/renew", body=body, verb="renew_certificate")
        return msgspec.json.decode(response, type=RegionJoinResponse)

    async def shared_material(self, request: MaterialRequest) -> SealedMaterial:
        body = msgspec.json.encode(request)
        response = await self._call("POST", "/join/v1/server/material", body=body, verb="shared_material")
        return msgspec.json.decode(response, type=SealedMaterial)
