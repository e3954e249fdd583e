// Makes a part of the page equal to another, and keeps what need not change: focus, scrolling,
// open details, what was typed. Elements are told apart by their ids; one whose new version
// has data-keep stays as it is, and one that has data-stay itself stays though there is no new one.

export function morph(from, to) {
  const focused = document.activeElement;
  children(from, to);
  if (focused && focused !== document.activeElement && focused.isConnected) {
    focused.focus({ preventScroll: true });
  }
}

function children(from, to) {
  const known = new Map();
  for (const child of from.children) if (child.id) known.set(child.id, child);
  let cursor = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    while (stays(cursor)) cursor = cursor.nextSibling;
    const match = wanted.id ? sameTag(known.get(wanted.id), wanted) : unnamed(cursor, wanted);
    if (!match) {
      from.insertBefore(document.importNode(wanted, true), cursor);
      continue;
    }
    if (match === cursor) cursor = cursor.nextSibling;
    else from.insertBefore(match, cursor);
    node(match, wanted);
  }
  while (cursor) {
    const next = cursor.nextSibling;
    if (!stays(cursor)) cursor.remove();
    cursor = next;
  }
}

function stays(found) {
  return found?.nodeType === Node.ELEMENT_NODE && found.hasAttribute("data-stay");
}

function sameTag(found, wanted) {
  return found && found.nodeName === wanted.nodeName ? found : null;
}

function unnamed(found, wanted) {
  if (!found || found.id || found.nodeType !== wanted.nodeType) return null;
  return found.nodeName === wanted.nodeName ? found : null;
}

function node(from, to) {
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  if (to.hasAttribute("data-keep")) return;
  attributes(from, to);
  children(from, to);
}

function attributes(from, to) {
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    const chosenHere = name === "open" && from.nodeName === "DETAILS";
    if (!to.hasAttribute(name) && !chosenHere) from.removeAttribute(name);
  }
}
