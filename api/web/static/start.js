// Runs before the page is drawn: shows parts that need scripts.
document.documentElement.classList.add("scripts");
