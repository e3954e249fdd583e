// Before the page is drawn: what is only for browsers with scripts may show.
document.documentElement.classList.add("scripts");
