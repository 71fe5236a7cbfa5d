"""`GET /radiximp/stats` in SGLang's own HTTP app, answered by the scheduler of each data-parallel rank."""

from __future__ import annotations


def add_routes() -> None:
    """Add our routes to the app; safe to call twice."""
    from fastapi import HTTPException
    from sglang.srt.entrypoints import http_server
    from sglang.srt.utils.auth import AuthLevel, auth_level

    if any(getattr(route, "path", "") == "/radiximp/stats" for route in http_server.app.routes):
        return

    @http_server.app.get("/radiximp/stats")
    @auth_level(AuthLevel.ADMIN_OPTIONAL)
    async def radiximp_stats():
        states = await http_server.get_global_state().tokenizer_manager.get_internal_state()
        missing = [rank for rank, state in enumerate(states) if "radiximp" not in state]
        if missing:
            raise HTTPException(
                500, f"radiximp is not active in the scheduler of data-parallel ranks {missing}"
            )
        return {"ranks": sorted((state["radiximp"] for state in states), key=lambda rank: rank["dp_rank"])}
