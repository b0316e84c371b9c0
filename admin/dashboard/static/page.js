// Keeps a page of leasehold up to date. The page also works without this script.
"use strict";

(() => {
  const main = document.getElementById("main");
  const fresh = document.getElementById("fresh");
  const say = document.getElementById("say");
  const pause = document.getElementById("pause");
  let ahead = Number(document.body.dataset.now) - Date.now(); // how far the server's clock is ahead of this one
  let heard = performance.now(); // when the last message arrived
  let connected = false;
  let paused = false;
  let stream = null;
  const now = () => Date.now() + ahead;

  // short formats a time as the server does: see short in words.go.
  function short(ms) {
    const two = (n) => String(n).padStart(2, "0");
    const s = Math.floor(Math.max(ms, 0) / 1000);
    if (ms < 10000) return (Math.max(ms, 0) / 1000).toFixed(1) + "s";
    if (s < 60) return s + "s";
    if (s < 3600) return Math.floor(s / 60) + "m " + two(s % 60) + "s";
    if (s < 48 * 3600) return Math.floor(s / 3600) + "h " + two(Math.floor((s % 3600) / 60)) + "m";
    return Math.floor(s / 86400) + "d " + two(Math.floor((s % 86400) / 3600)) + "h";
  }

  function setText(el, text) {
    if (el.textContent !== text) el.textContent = text;
  }

  // count updates the times that count up or down.
  function count() {
    if (paused) return;
    const old = connected === null || main.querySelector("[data-failing]"); // then a lease can have been renewed
    for (const el of main.querySelectorAll("[data-since]")) setText(el, short(now() - Number(el.dataset.since)));
    for (const el of main.querySelectorAll("[data-until]")) {
      const left = Math.max(Number(el.dataset.until) - now(), 0);
      const bar = el.querySelector("progress");
      setText(bar ? el.querySelector(".left") : el, old && left === 0 ? "unknown" : short(left));
      if (!bar) continue;
      const full = Number(el.dataset.full);
      bar.max = full;
      bar.value = left;
      bar.className = left < full / 4 ? "low" : left < full * 0.55 ? "late" : "good";
    }
  }

  // The attributes of each element that the user sets. Updates do not change them.
  const own = { DETAILS: ["open"] };

  // patch makes the old element equal to the new one. It replaces as little as possible, to keep the focus, the
  // selection and what is typed. It does not change an open form: the form names the holders displayed when it was opened,
  // and must not name others just before it is sent.
  function patch(old, next) {
    if (old.isEqualNode(next) || (old.hasAttribute("data-keep") && !old.closest("details:not([open])"))) return;
    const left = own[old.nodeName] || [];
    const renewed = Number(next.dataset.until) - Number(old.dataset.until) > 500 && old.classList.contains("lease");
    for (const a of [...old.attributes]) if (!next.hasAttribute(a.name) && !left.includes(a.name)) old.removeAttribute(a.name);
    for (const a of next.attributes) if (old.getAttribute(a.name) !== a.value && !left.includes(a.name)) old.setAttribute(a.name, a.value);
    if (renewed) {
      old.classList.add("renewed");
      old.addEventListener("animationend", () => old.classList.remove("renewed"), { once: true });
      setTimeout(() => old.classList.remove("renewed"), 1500);
    }
    if (old.hasAttribute("data-since") || old.hasAttribute("data-until")) return; // count sets what is inside
    children(old, next);
  }

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || "" : "");

  function children(old, next) {
    const keyed = new Map();
    const wanted = new Set([...next.children].map(keyOf));
    for (const c of [...old.children]) {
      if (!keyOf(c)) continue;
      if (wanted.has(keyOf(c))) keyed.set(keyOf(c), c);
      else c.remove();
    }
    const stays = (node) => node.nodeType === Node.ELEMENT_NODE && node.hasAttribute("data-stay");
    let at = old.firstChild;
    for (const n of [...next.childNodes]) {
      while (at && stays(at)) at = at.nextSibling;
      const known = keyed.get(keyOf(n));
      while (known && at && at !== known && at.nodeType === Node.TEXT_NODE) { // text around a row that was removed
        const following = at.nextSibling;
        at.remove();
        at = following;
      }
      if (known && known !== at) {
        old.insertBefore(known, at);
        at = known;
      }
      if (at && at.nodeType === n.nodeType && at.nodeName === n.nodeName && keyOf(at) === keyOf(n) && classOf(at) === classOf(n)) {
        const following = at.nextSibling;
        if (n.nodeType === Node.ELEMENT_NODE) patch(at, n);
        else if (at.nodeValue !== n.nodeValue) at.nodeValue = n.nodeValue;
        at = following;
      } else {
        old.insertBefore(n, at);
      }
    }
    while (at) {
      const following = at.nextSibling;
      if (!stays(at)) at.remove();
      at = following;
    }
  }

  // classOf returns the first class of an element. Elements with different first classes are never patched into each other.
  const classOf = (node) => (node.nodeType === Node.ELEMENT_NODE && node.nodeName !== "PROGRESS" ? node.classList[0] || "" : "");

  function told(text) {
    if (say.textContent !== text) say.textContent = text;
  }

  function received(message) {
    const data = JSON.parse(message.data);
    ahead = data.now - Date.now();
    heard = performance.now();
    if (!connected) {
      if (connected === null) told("The page is up to date again.");
      connected = true;
    }
    if (data.html !== undefined) {
      const rings = main.querySelector(".ring") !== null;
      const doc = new DOMParser().parseFromString("<main>" + data.html + "</main>", "text/html");
      const focused = document.activeElement;
      children(main, doc.querySelector("main"));
      if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true }); // it was moved
      if (!rings && main.querySelector(".ring")) told("Possible deadlock: some clients wait for each other.");
    }
    count();
    status();
  }

  function status() {
    const age = performance.now() - heard;
    const offline = connected !== true;
    const failing = main.querySelector("[data-failing]");
    fresh.className = "fresh " + (paused ? "" : offline || failing ? "off" : age < 5000 ? "on" : "");
    setText(fresh, paused ? "paused" : offline ? (connected === null ? "disconnected, as of " + short(age) + " ago" : "connecting") : failing ? failing.dataset.failing : age < 5000 ? "live" : "live, as of " + short(age) + " ago");
  }

  // A filter applies while it is typed: a new stream of the page gets the new address.
  let typing = 0;
  main.addEventListener("input", (e) => {
    const form = e.target.closest("form[role=search]");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => {
      history.replaceState(null, "", "?" + new URLSearchParams(new FormData(form)));
      close();
      open();
    }, 150);
  });

  // A form that is closed must get the current holders: a new stream begins with the whole page.
  main.addEventListener("toggle", (e) => {
    if (e.target.open) return;
    close();
    open();
  }, true); // toggle does not bubble

  // Copy buttons are displayed only with this script: see .copy in style.css.
  document.documentElement.classList.add("script");
  main.addEventListener("click", async (e) => {
    const button = e.target.closest(".copy");
    if (!button) return;
    const text = button.dataset.text ?? document.getElementById(button.dataset.from).textContent.trim();
    try {
      await navigator.clipboard.writeText(text);
    } catch { // there is no clipboard without TLS
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1500);
    told("Copied.");
  });

  const shortcuts = document.getElementById("shortcuts");
  const help = document.getElementById("help");
  help.hidden = false;
  help.addEventListener("click", () => shortcuts.showModal());

  // row moves the focus by this number of rows.
  function row(by) {
    const links = [...main.querySelectorAll("tr[data-key] a:first-of-type, .links a")];
    const at = links.indexOf(document.activeElement);
    const next = links[at < 0 ? 0 : at + by];
    if (next) next.focus();
  }

  function search() {
    const field = main.querySelector("input[type=search]");
    if (!field) {
      location.href = "./locks#search";
      return;
    }
    field.focus();
    field.select();
  }

  addEventListener("keydown", (e) => {
    const field = e.target.closest("input, select, textarea");
    if (e.key === "Escape" && field) {
      e.preventDefault(); // the default action would clear the field without updating the list
      field.blur();
    }
    if (field || shortcuts.open || e.ctrlKey || e.metaKey || e.altKey) return;
    const action = { "/": search, j: () => row(1), k: () => row(-1), "?": () => shortcuts.showModal() }[e.key];
    if (!action) return;
    e.preventDefault();
    action();
  });
  if (location.hash === "#search") search();

  function open() {
    if (stream || paused || document.hidden) return;
    const q = new URLSearchParams(location.search);
    q.set("view", document.body.dataset.view);
    stream = new EventSource("./events?" + q);
    stream.onmessage = received;
    stream.onerror = () => {
      if (connected === true) told("Connection lost. Reconnecting.");
      connected = null;
      if (stream && stream.readyState === EventSource.CLOSED) {
        close();
        setTimeout(open, 5000);
      }
      status();
    };
  }

  function close() {
    if (stream) stream.close();
    stream = null;
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    setText(pause, paused ? "Resume" : "Pause");
    if (paused) close();
    else open();
    status();
  });
  // A hidden page closes its stream, because a browser limits its connections to one server.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  setInterval(() => { count(); status(); }, 200);
  count();
  open();
})();
