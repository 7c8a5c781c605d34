"""Administration of access control: accounts, white lists and the versions of their files
(upstream: AdminBrokerProcessor.java; PlainAccessConfig.java, AclConfig.java)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.acl.files import AccountChange
from cometmq.core.errors import AclDenied, BadRequest
from cometmq.protocol.bodies import AccountEntry, AclConfig, DataVersion
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json
from cometmq.protocol.fields import truth
from cometmq.protocol.frame import Reply
from cometmq.protocol.headers import AclVersionResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.acl.control import AccessControl
    from cometmq.acl.files import AclFiles
    from cometmq.broker.context import BrokerContext
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import AccountKey, ChangeAccount, ChangeWhiteList

log = logging.getLogger(__name__)

#: Replaces each secret in answers. Otherwise one signed request that a listener recorded would give
#: it all secrets.
MASKED: Final = "******"


class AclAdmin:
    """Serves the codes that show and change accounts. ``access`` is None without
    access control."""

    def __init__(self, context: BrokerContext, access: AccessControl | None) -> None:
        self._config = context.config
        self._access = access
        self._address = context.store_address

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.put_account,
            RequestCode.DELETE_ACL_CONFIG: self.delete_account,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.versions,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.set_white_list,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self.show,
        }

    async def put_account(self, peer: Peer, request: Request[ChangeAccount]) -> Reply:
        """Create an account, or change those values of an existing account that the request has."""
        header = request.header
        change = AccountChange(
            header.access_key,
            header.secret_key,
            header.white_remote_address,
            truth(header.admin),
            header.default_topic_perm,
            header.default_group_perm,
            _listed(header.topic_perms),
            _listed(header.group_perms),
        )
        failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        await self._change(lambda files: files.put_account(change), failed)
        log.warning("acl account changed by=%s accessKey=%s", peer.address, header.access_key[:64])
        return Reply()

    async def delete_account(self, peer: Peer, request: Request[AccountKey]) -> Reply:
        """Delete an account."""
        access_key = request.header.access_key
        failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
        if not await self._change(lambda files: files.delete_account(access_key), failed):
            raise BadRequest(
                failed,
                f"The accessKey[{access_key[:64]}] corresponding to accessConfig has been deleted "
                "failed.",
            )
        log.warning("acl account deleted by=%s accessKey=%s", peer.address, access_key[:64])
        return Reply()

    async def set_white_list(self, peer: Peer, request: Request[ChangeWhiteList]) -> Reply:
        """Replace the global white list of one file."""
        header = request.header
        patterns = _listed(header.global_white_addrs)
        failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        await self._change(
            lambda files: files.set_white_list(patterns, header.acl_file_full_path), failed
        )
        log.warning("acl white list changed by=%s entries=%d", peer.address, len(patterns))
        return Reply()

    def versions(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return the version of each file, and that of the default file."""
        access = self._on(ResponseCode.SYSTEM_ERROR)
        versions = access.content.versions
        header = AclVersionResponse(
            _json(versions.get(access.default_path, DataVersion())),
            self._config.broker_name,
            self._address,
            self._config.broker_cluster_name,
            _json(versions),
        )
        return Reply(header=header)

    def show(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return all accounts, without their secrets, and the global white list."""
        access = self._on(ResponseCode.SYSTEM_ERROR)
        patterns: list[str] = []
        entries: list[AccountEntry] = []
        for document in access.content.documents.values():
            patterns += [str(text) for text in document.get("globalWhiteRemoteAddresses") or ()]
            entries += [
                msgspec.convert(values | {"secretKey": MASKED}, AccountEntry, strict=False)
                for values in document.get("accounts") or ()
            ]
        return Reply(body=encode_json(AclConfig(patterns, entries)))

    async def _change(self, change: Callable[[AclFiles], object], failed: ResponseCode) -> object:
        access = self._on(failed)
        try:
            return await access.change(change)
        except AclDenied as error:
            raise BadRequest(failed, str(error)) from None
        except OSError as error:
            raise BadRequest(failed, f"the ACL file cannot be written: {error}") from None

    def _on(self, code: ResponseCode) -> AccessControl:
        """Return access control; raise BadRequest with ``code`` if it is not enabled."""
        if self._access is None:
            raise BadRequest(code, "The broker does not enable acl: start it with aclEnable=true")
        return self._access


def _listed(text: str | None) -> list[str]:
    return [each.strip() for each in (text or "").split(",") if each.strip()]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
