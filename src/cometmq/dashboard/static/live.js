// Keeps the live part of the page current, searches while one types, reads charts, and has keys.
// The server makes all HTML; this only fetches the live part of the page's own address.
"use strict";

const live = document.getElementById("live");
const stale = document.getElementById("stale");
let latest = 0;

function isBusy() {
  const at = document.activeElement;
  const typing = at && live.contains(at) && at.matches("input, select, textarea");
  return typing || live.querySelector("input:checked[data-pick]") !== null || !getSelection().isCollapsed;
}

async function replace(address) {
  const turn = ++latest;
  let answer;
  try {
    answer = await fetch(address, {
      headers: { "X-Fragment": "1" }, signal: AbortSignal.timeout(15000), redirect: "error",
    });
  } catch {
    if (turn === latest) stale.hidden = false;
    return;
  }
  if (answer.status === 401) {
    location.assign("/login");
    return;
  }
  const text = await answer.text();
  if (turn !== latest) return;
  stale.hidden = answer.ok;
  if (!answer.ok || text === live.dataset.text) return;
  const focused = document.activeElement && live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const left = [...live.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  const open = [...live.querySelectorAll("details[open][data-keep]")].map((each) => each.dataset.keep);
  live.innerHTML = text;
  for (const each of live.querySelectorAll("details[data-keep]")) each.open ||= open.includes(each.dataset.keep);
  live.dataset.text = text;
  live.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = left[at] || 0; });
  if (focused) live.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

if (live) {
  const every = Number(live.dataset.every);
  const next = async () => {
    if (document.visibilityState === "visible" && !isBusy() && !live.querySelector(".reading")) {
      await replace(location.href);
    }
    setTimeout(next, every);
  };
  if (every > 0) setTimeout(next, every);

  for (const form of document.querySelectorAll("form[data-search]")) {
    let due;
    const search = () => {
      const fields = [...new FormData(form)].filter(([, value]) => value !== "");
      const query = new URLSearchParams(fields).toString();
      const address = form.getAttribute("action") + (query ? "?" + query : "");
      history.replaceState(null, "", address);
      replace(address);
    };
    form.addEventListener("input", () => { clearTimeout(due); due = setTimeout(search, 150); });
    form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(due); search(); });
  }

  live.addEventListener("pointermove", (event) => {
    const canvas = event.target.closest?.(".canvas");
    if (canvas) read(canvas, event.clientX);
  });
  live.addEventListener("pointerout", (event) => {
    const canvas = event.target.closest?.(".canvas");
    if (canvas && !canvas.contains(event.relatedTarget)) unread(canvas.closest(".chart"));
  });
  live.addEventListener("change", (event) => {
    if (event.target.matches("[data-pick-all]")) {
      for (const each of live.querySelectorAll("[data-pick]")) each.checked = event.target.checked;
    }
  });
}

function read(canvas, clientX) {
  const chart = canvas.closest(".chart");
  const rows = chart.dataset.readings.split("\n").filter(Boolean).map((row) => row.split("|"));
  if (!rows.length) return;
  const box = canvas.getBoundingClientRect();
  const wanted = (clientX - box.left) / box.width;
  const nearest = rows.reduce((one, other) =>
    Math.abs(other[0] - wanted) < Math.abs(one[0] - wanted) ? other : one);
  chart.classList.add("reading");
  const cursor = canvas.querySelector(".cursor");
  cursor.hidden = false;
  cursor.style.left = `${nearest[0] * 100}%`;
  chart.querySelector(".moment").textContent = nearest[1] + " UTC";
  for (const value of chart.querySelectorAll("[data-line]")) {
    value.dataset.now ??= value.textContent;
    value.textContent = nearest[2 + Number(value.dataset.line)];
  }
}

function unread(chart) {
  chart.classList.remove("reading");
  chart.querySelector(".cursor").hidden = true;
  chart.querySelector(".moment").textContent = "";
  for (const value of chart.querySelectorAll("[data-line]")) {
    if (value.dataset.now) value.textContent = value.dataset.now;
  }
}

// "/" goes to the search; "g" and then a letter goes to a page.
let going = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.("input, select, textarea")) return;
  if (event.key === "/") {
    const field = document.querySelector("input[type=search]");
    if (field) {
      event.preventDefault();
      field.focus();
      field.select();
    }
  } else if (going) {
    going = false;
    document.querySelector(`.side a[data-key="${CSS.escape(event.key)}"]`)?.click();
  } else if (event.key === "g") {
    going = true;
    setTimeout(() => { going = false; }, 1500);
  }
});
